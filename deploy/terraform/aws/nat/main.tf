# A NAT instance per zone, each behind the route tables of its own zone: no traffic between zones, and a zone that fails takes
# only its own way out along.

terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0"
    }
  }
}

variable "vpc_id" {
  description = "The VPC, which has an internet gateway."
  type        = string
}

variable "ranges" {
  description = "IPv4 ranges to translate, such as the one of the VPC."
  type        = list(string)
}

variable "zones" {
  description = "By zone: a public subnet for the instance, and the route tables of the private subnets that it serves."
  type        = map(object({ public_subnet_id = string, route_table_ids = list(string) }))
}

variable "package" {
  description = "URL and SHA-256 of weir's package for x86-64."
  type        = object({ url = string, sha256 = string })
}

variable "instance_type" {
  description = "A small one bursts only: see the README."
  type        = string
  default     = "c7i.large"
}

variable "key_name" {
  description = "Name of a key pair for ssh, or null. No rule opens port 22 from outside."
  type        = string
  default     = null
}

locals {
  routes = merge([for zone, place in var.zones : {
    for number, table in place.route_table_ids : "${zone}/${number}" => { zone = zone, table = table }
  }]...)
}

# Debian 13: its kernel has all that the fast path needs.
data "aws_ami" "debian" {
  most_recent = true
  owners      = ["136693071363"]
  filter {
    name   = "name"
    values = ["debian-13-amd64-*"]
  }
}

module "user_data" {
  source = "../../user-data"
  settings = {
    RANGES         = join(" ", var.ranges)
    PACKAGE        = var.package.url
    PACKAGE_SHA256 = var.package.sha256
  }
}

resource "aws_security_group" "nat" {
  name_prefix = "weir-nat-"
  description = "NAT instance: from the inside all, to the outside all"
  vpc_id      = var.vpc_id
  ingress {
    description = "What is to be translated"
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = var.ranges
  }
  egress {
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = ["0.0.0.0/0"]
  }
  lifecycle {
    create_before_destroy = true
  }
}

# Interface and public address outlive the instance, so that a new one takes over the routes and the address.
resource "aws_network_interface" "nat" {
  for_each        = var.zones
  subnet_id       = each.value.public_subnet_id
  security_groups = [aws_security_group.nat.id]
  # Otherwise AWS drops every packet that is not from or to the instance itself.
  source_dest_check = false
  tags              = { Name = "weir-nat-${each.key}" }
}

resource "aws_eip" "nat" {
  for_each          = var.zones
  domain            = "vpc"
  network_interface = aws_network_interface.nat[each.key].id
  tags              = { Name = "weir-nat-${each.key}" }
}

resource "aws_instance" "nat" {
  for_each                    = var.zones
  ami                         = data.aws_ami.debian.id
  instance_type               = var.instance_type
  key_name                    = var.key_name
  user_data                   = module.user_data.user_data
  user_data_replace_on_change = true
  primary_network_interface {
    network_interface_id = aws_network_interface.nat[each.key].id
  }
  metadata_options {
    http_tokens = "required"
  }
  root_block_device {
    encrypted = true
  }
  tags = { Name = "weir-nat-${each.key}" }
  lifecycle {
    # A new image of Debian is no reason to cut the zone off: replace the instance when it suits you.
    ignore_changes = [ami]
  }
  # Its first boot needs the way out.
  depends_on = [aws_eip.nat]
}

resource "aws_route" "out" {
  for_each               = local.routes
  route_table_id         = each.value.table
  destination_cidr_block = "0.0.0.0/0"
  network_interface_id   = aws_network_interface.nat[each.value.zone].id
}

output "public_addresses" {
  value = { for zone, address in aws_eip.nat : zone => address.public_ip }
}
