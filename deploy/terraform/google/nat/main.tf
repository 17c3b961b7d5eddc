# A NAT instance per zone. Routes of Google Cloud belong to the network, not to a subnet: a tag of the hosts inside selects the
# gateway, so that each zone has its own.

terraform {
  required_version = ">= 1.6"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0"
    }
  }
}

variable "project" {
  type = string
}

variable "network" {
  description = "Name of the VPC network, with its default route to the internet gateway."
  type        = string
}

variable "ranges" {
  description = "IPv4 ranges to translate, such as those of the subnets."
  type        = list(string)
}

variable "zones" {
  description = "By zone: the subnet for the instance, and the network tag of the hosts that it serves."
  type        = map(object({ subnetwork = string, tag = string }))
}

variable "package" {
  description = "URL and SHA-256 of weir's package for x86-64."
  type        = object({ url = string, sha256 = string })
}

variable "machine_type" {
  type    = string
  default = "n2-standard-2"
}

module "user_data" {
  source = "../../user-data"
  settings = {
    RANGES         = join(" ", var.ranges)
    PACKAGE        = var.package.url
    PACKAGE_SHA256 = var.package.sha256
  }
}

# Debian's images for Google Cloud have no cloud-init; Ubuntu's have.
data "google_compute_image" "ubuntu" {
  project = "ubuntu-os-cloud"
  family  = "ubuntu-2404-lts-amd64"
}

resource "google_compute_firewall" "nat" {
  project       = var.project
  name          = "weir-nat"
  network       = var.network
  description   = "What is to be translated"
  source_ranges = var.ranges
  target_tags   = ["weir-nat"]
  allow {
    protocol = "all"
  }
}

resource "google_compute_address" "nat" {
  for_each = var.zones
  project  = var.project
  name     = "weir-nat-${each.key}"
  # A zone's name is that of its region and a letter.
  region = replace(each.key, "/-[a-z]$/", "")
}

resource "google_compute_instance" "nat" {
  for_each     = var.zones
  project      = var.project
  name         = "weir-nat-${each.key}"
  zone         = each.key
  machine_type = var.machine_type
  # Otherwise Google drops every packet that is not from or to the host itself. It cannot be changed later.
  can_ip_forward = true
  # Without the tag of the hosts inside: their route would lead the gateway back to itself.
  tags     = ["weir-nat"]
  metadata = { user-data = module.user_data.user_data }
  boot_disk {
    initialize_params {
      image = data.google_compute_image.ubuntu.self_link
    }
  }
  network_interface {
    subnetwork = each.value.subnetwork
    access_config {
      nat_ip = google_compute_address.nat[each.key].address
    }
  }
  lifecycle {
    # A new image of Ubuntu is no reason to cut the zone off: replace the instance when it suits you.
    ignore_changes = [boot_disk[0].initialize_params[0].image]
  }
}

resource "google_compute_route" "out" {
  for_each   = var.zones
  project    = var.project
  name       = "weir-nat-${each.key}"
  network    = var.network
  dest_range = "0.0.0.0/0"
  # Before the network's own default route, which has 1000.
  priority               = 900
  tags                   = [each.value.tag]
  next_hop_instance      = google_compute_instance.nat[each.key].name
  next_hop_instance_zone = each.key
}

output "public_addresses" {
  value = { for zone, address in google_compute_address.nat : zone => address.address }
}
