# Three VMs in a VPC of their own, and a managed NAT gateway beside the NAT instance:
#
#   client --- gateway (NAT instance) --- server's private address
#   client --- managed NAT gateway ------ server's public address

terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0"
    }
  }
}

variable "zone" {
  description = "All hosts are in one zone, such as us-east-1a: traffic between zones costs more and takes longer."
  type        = string
}

variable "instance_type" {
  type    = string
  default = "c7i.large"
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
  subnets = {
    client  = "10.77.1.0/24"
    gateway = "10.77.2.0/24"
    server  = "10.77.3.0/24"
  }
  addresses = { for name, range in local.subnets : name => cidrhost(range, 10) }
  public    = toset(["gateway", "server"])
}

data "aws_ami" "debian" {
  most_recent = true
  owners      = ["136693071363"]
  filter {
    name   = "name"
    values = ["debian-13-amd64-*"]
  }
}

resource "aws_vpc" "testbed" {
  cidr_block = "10.77.0.0/16"
  tags       = { Name = "weir-testbed" }
}

resource "aws_internet_gateway" "out" {
  vpc_id = aws_vpc.testbed.id
}

resource "aws_subnet" "host" {
  for_each          = local.subnets
  vpc_id            = aws_vpc.testbed.id
  availability_zone = var.zone
  cidr_block        = each.value
  tags              = { Name = "weir-testbed-${each.key}" }
}

resource "aws_route_table" "host" {
  for_each = local.subnets
  vpc_id   = aws_vpc.testbed.id
  tags     = { Name = "weir-testbed-${each.key}" }
}

resource "aws_route_table_association" "host" {
  for_each       = local.subnets
  subnet_id      = aws_subnet.host[each.key].id
  route_table_id = aws_route_table.host[each.key].id
}

resource "aws_route" "public" {
  for_each               = local.public
  route_table_id         = aws_route_table.host[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.out.id
}

# The two ways of the client. A route to a whole subnet may be more specific than the VPC's own.
resource "aws_route" "through_gateway" {
  route_table_id         = aws_route_table.host["client"].id
  destination_cidr_block = local.subnets.server
  network_interface_id   = aws_network_interface.host["gateway"].id
}

resource "aws_route" "through_managed" {
  route_table_id         = aws_route_table.host["client"].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.managed.id
}

# For the variant that forwards without translating.
resource "aws_route" "back" {
  route_table_id         = aws_route_table.host["server"].id
  destination_cidr_block = local.subnets.client
  network_interface_id   = aws_network_interface.host["gateway"].id
}

resource "aws_eip" "managed" {
  domain = "vpc"
}

resource "aws_nat_gateway" "managed" {
  allocation_id = aws_eip.managed.id
  subnet_id     = aws_subnet.host["gateway"].id
  depends_on    = [aws_internet_gateway.out]
}

resource "aws_security_group" "host" {
  name_prefix = "weir-testbed-"
  vpc_id      = aws_vpc.testbed.id
  ingress {
    description = "All between the hosts, and from the managed gateway to the server's public address"
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = [aws_vpc.testbed.cidr_block, "${aws_eip.managed.public_ip}/32"]
  }
  ingress {
    description = "ssh from you"
    protocol    = "tcp"
    from_port   = 22
    to_port     = 22
    cidr_blocks = ["${var.my_address}/32"]
  }
  egress {
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_network_interface" "host" {
  for_each        = local.subnets
  subnet_id       = aws_subnet.host[each.key].id
  private_ips     = [local.addresses[each.key]]
  security_groups = [aws_security_group.host.id]
  # The gateway forwards packets of others.
  source_dest_check = each.key != "gateway"
}

resource "aws_eip" "host" {
  for_each          = local.public
  domain            = "vpc"
  network_interface = aws_network_interface.host[each.key].id
  depends_on        = [aws_internet_gateway.out]
}

resource "aws_key_pair" "you" {
  key_name_prefix = "weir-testbed-"
  public_key      = var.public_key
}

resource "aws_instance" "host" {
  for_each      = local.subnets
  ami           = data.aws_ami.debian.id
  instance_type = var.instance_type
  key_name      = aws_key_pair.you.key_name
  user_data     = "#cloud-config\npackages: [nftables, iptables]\n"
  primary_network_interface {
    network_interface_id = aws_network_interface.host[each.key].id
  }
  metadata_options {
    http_tokens = "required"
  }
  tags = { Name = "weir-testbed-${each.key}" }
  # Packages of the first boot come by these ways.
  depends_on = [aws_eip.host, aws_route.public, aws_route.through_managed]
}

module "testbed" {
  source         = "../../testbed"
  user           = "admin"
  managed_option = "aws-nat-gateway"
  client         = local.addresses.client
  # Its only interface, which Debian calls ens5 on the current kinds of instances: one arm in, and the same one out.
  gateway = {
    public            = aws_eip.host["gateway"].public_ip
    inside_interface  = "ens5"
    inside_address    = local.addresses.gateway
    outside_interface = "ens5"
    outside_address   = local.addresses.gateway
  }
  server = { private = local.addresses.server, public = aws_eip.host["server"].public_ip }
}

output "scenario" {
  value = module.testbed.scenario
}

output "ssh_config" {
  value = module.testbed.ssh_config
}
