# Three VMs in a virtual network of their own, and a managed NAT gateway beside the NAT instance:
#
#   client --- gateway (NAT instance) --- server's private address
#   client --- managed NAT gateway ------ server's public address

terraform {
  required_version = ">= 1.6"
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 4.0"
    }
  }
}

# The subscription is that of ARM_SUBSCRIPTION_ID.
provider "azurerm" {
  features {}
}

variable "location" {
  type    = string
  default = "westeurope"
}

variable "zone" {
  description = "All hosts are in one zone."
  type        = string
  default     = "1"
}

variable "size" {
  type    = string
  default = "Standard_D2s_v5"
}

variable "public_key" {
  description = "Your ssh public key."
  type        = string
}

variable "my_address" {
  description = "Your public IPv4 address: the only one that ssh is open to."
  type        = string
}

locals {
  range = "10.77.0.0/16"
  subnets = {
    client  = "10.77.1.0/24"
    gateway = "10.77.2.0/24"
    server  = "10.77.3.0/24"
  }
  addresses = { for name, range in local.subnets : name => cidrhost(range, 10) }
  public    = toset(["gateway", "server"])
  # Where each end's packets for the other one go.
  through_gateway = { client = local.subnets.server, server = local.subnets.client }
}

resource "azurerm_resource_group" "testbed" {
  name     = "weir-testbed"
  location = var.location
}

resource "azurerm_virtual_network" "testbed" {
  name                = "weir-testbed"
  resource_group_name = azurerm_resource_group.testbed.name
  location            = var.location
  address_space       = [local.range]
}

resource "azurerm_subnet" "host" {
  for_each             = local.subnets
  name                 = each.key
  resource_group_name  = azurerm_resource_group.testbed.name
  virtual_network_name = azurerm_virtual_network.testbed.name
  address_prefixes     = [each.value]
}

resource "azurerm_route_table" "end" {
  for_each            = local.through_gateway
  name                = each.key
  resource_group_name = azurerm_resource_group.testbed.name
  location            = var.location
}

resource "azurerm_route" "through_gateway" {
  for_each               = local.through_gateway
  name                   = "through-gateway"
  resource_group_name    = azurerm_resource_group.testbed.name
  route_table_name       = azurerm_route_table.end[each.key].name
  address_prefix         = each.value
  next_hop_type          = "VirtualAppliance"
  next_hop_in_ip_address = local.addresses.gateway
}

resource "azurerm_subnet_route_table_association" "end" {
  for_each       = local.through_gateway
  subnet_id      = azurerm_subnet.host[each.key].id
  route_table_id = azurerm_route_table.end[each.key].id
}

resource "azurerm_public_ip" "host" {
  for_each            = setunion(local.public, ["managed"])
  name                = each.key
  resource_group_name = azurerm_resource_group.testbed.name
  location            = var.location
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = [var.zone]
}

resource "azurerm_nat_gateway" "managed" {
  name                = "managed"
  resource_group_name = azurerm_resource_group.testbed.name
  location            = var.location
  sku_name            = "Standard"
  zones               = [var.zone]
}

resource "azurerm_nat_gateway_public_ip_association" "managed" {
  nat_gateway_id       = azurerm_nat_gateway.managed.id
  public_ip_address_id = azurerm_public_ip.host["managed"].id
}

resource "azurerm_subnet_nat_gateway_association" "client" {
  subnet_id      = azurerm_subnet.host["client"].id
  nat_gateway_id = azurerm_nat_gateway.managed.id
}

resource "azurerm_network_security_group" "host" {
  name                = "weir-testbed"
  resource_group_name = azurerm_resource_group.testbed.name
  location            = var.location
  security_rule {
    name                       = "between-hosts"
    description                = "Also from the managed gateway to the server's public address."
    priority                   = 100
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_address_prefixes    = [local.range, azurerm_public_ip.host["managed"].ip_address]
    source_port_range          = "*"
    destination_address_prefix = "*"
    destination_port_range     = "*"
  }
  security_rule {
    name                       = "ssh-from-you"
    priority                   = 110
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "Tcp"
    source_address_prefix      = "${var.my_address}/32"
    source_port_range          = "*"
    destination_address_prefix = "*"
    destination_port_range     = "22"
  }
}

resource "azurerm_network_interface" "host" {
  for_each            = local.subnets
  name                = each.key
  resource_group_name = azurerm_resource_group.testbed.name
  location            = var.location
  # The gateway forwards packets of others.
  ip_forwarding_enabled          = each.key == "gateway"
  accelerated_networking_enabled = true
  ip_configuration {
    name                          = "host"
    subnet_id                     = azurerm_subnet.host[each.key].id
    private_ip_address_allocation = "Static"
    private_ip_address            = local.addresses[each.key]
    public_ip_address_id          = contains(local.public, each.key) ? azurerm_public_ip.host[each.key].id : null
  }
}

resource "azurerm_network_interface_security_group_association" "host" {
  for_each                  = local.subnets
  network_interface_id      = azurerm_network_interface.host[each.key].id
  network_security_group_id = azurerm_network_security_group.host.id
}

resource "azurerm_linux_virtual_machine" "host" {
  for_each              = local.subnets
  name                  = "weir-${each.key}"
  resource_group_name   = azurerm_resource_group.testbed.name
  location              = var.location
  zone                  = var.zone
  size                  = var.size
  admin_username        = "weir"
  network_interface_ids = [azurerm_network_interface.host[each.key].id]
  custom_data           = base64encode("#cloud-config\npackages: [nftables, iptables]\n")
  admin_ssh_key {
    username   = "weir"
    public_key = var.public_key
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }
  source_image_reference {
    publisher = "Debian"
    offer     = "debian-13"
    sku       = "13-gen2"
    version   = "latest"
  }
  # Packages of the first boot come by these ways.
  depends_on = [
    azurerm_network_interface_security_group_association.host,
    azurerm_nat_gateway_public_ip_association.managed,
    azurerm_subnet_nat_gateway_association.client,
  ]
}

module "testbed" {
  source         = "../../testbed"
  user           = "weir"
  managed_option = "azure-nat-gateway"
  client         = local.addresses.client
  # Its only interface: one arm in, and the same one out.
  gateway = {
    public            = azurerm_public_ip.host["gateway"].ip_address
    inside_interface  = "eth0"
    inside_address    = local.addresses.gateway
    outside_interface = "eth0"
    outside_address   = local.addresses.gateway
  }
  server = { private = local.addresses.server, public = azurerm_public_ip.host["server"].ip_address }
}

output "scenario" {
  value = module.testbed.scenario
}

output "ssh_config" {
  value = module.testbed.ssh_config
}
