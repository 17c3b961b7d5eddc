# A NAT instance per zone, each behind the route table of the subnets that it serves.

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

variable "resource_group" {
  description = "Name of an existing resource group."
  type        = string
}

variable "location" {
  type = string
}

variable "ranges" {
  description = "IPv4 ranges to translate, such as the address space of the virtual network."
  type        = list(string)
}

variable "zones" {
  description = "By zone (1, 2 or 3): a subnet for the instance alone, and the route table of the subnets that it serves."
  type        = map(object({ subnet_id = string, route_table_name = string }))
}

variable "package" {
  description = "URL and SHA-256 of weir's package for x86-64."
  type        = object({ url = string, sha256 = string })
}

variable "size" {
  type    = string
  default = "Standard_D2s_v5"
}

variable "public_key" {
  description = "Your ssh public key. No rule opens port 22 from outside."
  type        = string
}

module "user_data" {
  source = "../../user-data"
  settings = {
    RANGES         = join(" ", var.ranges)
    PACKAGE        = var.package.url
    PACKAGE_SHA256 = var.package.sha256
  }
}

resource "azurerm_network_security_group" "nat" {
  name                = "weir-nat"
  resource_group_name = var.resource_group
  location            = var.location
  # The default rules admit what is for the virtual network, and not what goes through this host to the internet.
  security_rule {
    name                       = "to-translate"
    priority                   = 100
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_address_prefixes    = var.ranges
    source_port_range          = "*"
    destination_address_prefix = "*"
    destination_port_range     = "*"
  }
}

resource "azurerm_public_ip" "nat" {
  for_each            = var.zones
  name                = "weir-nat-${each.key}"
  resource_group_name = var.resource_group
  location            = var.location
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = [each.key]
}

resource "azurerm_network_interface" "nat" {
  for_each            = var.zones
  name                = "weir-nat-${each.key}"
  resource_group_name = var.resource_group
  location            = var.location
  # Otherwise Azure drops every packet that is not from or to the host itself.
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true
  ip_configuration {
    name                          = "nat"
    subnet_id                     = each.value.subnet_id
    private_ip_address_allocation = "Dynamic"
    public_ip_address_id          = azurerm_public_ip.nat[each.key].id
  }
}

resource "azurerm_network_interface_security_group_association" "nat" {
  for_each                  = var.zones
  network_interface_id      = azurerm_network_interface.nat[each.key].id
  network_security_group_id = azurerm_network_security_group.nat.id
}

resource "azurerm_linux_virtual_machine" "nat" {
  for_each              = var.zones
  name                  = "weir-nat-${each.key}"
  resource_group_name   = var.resource_group
  location              = var.location
  zone                  = each.key
  size                  = var.size
  admin_username        = "weir"
  network_interface_ids = [azurerm_network_interface.nat[each.key].id]
  custom_data           = base64encode(module.user_data.user_data)
  admin_ssh_key {
    username   = "weir"
    public_key = var.public_key
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }
  # Debian 13: its kernel has all that the fast path needs.
  source_image_reference {
    publisher = "Debian"
    offer     = "debian-13"
    sku       = "13-gen2"
    version   = "latest"
  }
  depends_on = [azurerm_network_interface_security_group_association.nat]
}

# The address is that of the running VM: before that the interface may have none.
resource "azurerm_route" "out" {
  for_each               = var.zones
  name                   = "weir-nat"
  resource_group_name    = var.resource_group
  route_table_name       = each.value.route_table_name
  address_prefix         = "0.0.0.0/0"
  next_hop_type          = "VirtualAppliance"
  next_hop_in_ip_address = azurerm_linux_virtual_machine.nat[each.key].private_ip_address
}

output "public_addresses" {
  value = { for zone, address in azurerm_public_ip.nat : zone => address.ip_address }
}
