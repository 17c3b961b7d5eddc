# Three VMs, and a managed NAT (Cloud NAT) beside the NAT instance:
#
#   client --- gateway (NAT instance) --- server's private address
#   client --- Cloud NAT ---------------- server's public address
#
# Client and server have a network each, and the gateway an interface in both: no route can replace those that Google makes
# between the subnets of one network.

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

variable "region" {
  type    = string
  default = "europe-west1"
}

variable "zone" {
  description = "All hosts are in one zone of that region."
  type        = string
  default     = "europe-west1-b"
}

variable "machine_type" {
  description = "At least two interfaces: two vCPUs or more."
  type        = string
  default     = "n2-standard-2"
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
  ranges  = { client = "10.77.1.0/24", server = "10.77.3.0/24" }
  inside  = cidrhost(local.ranges.client, 4)
  outside = cidrhost(local.ranges.server, 4)
  # The hosts and their interfaces, the first of which has the default route.
  hosts = {
    client  = [{ side = "client", address = cidrhost(local.ranges.client, 10), public = false }]
    server  = [{ side = "server", address = cidrhost(local.ranges.server, 10), public = true }]
    gateway = [{ side = "server", address = local.outside, public = true }, { side = "client", address = local.inside, public = false }]
  }
}

data "google_compute_image" "ubuntu" {
  project = "ubuntu-os-cloud"
  family  = "ubuntu-2404-lts-amd64"
}

resource "google_compute_network" "side" {
  for_each                = local.ranges
  project                 = var.project
  name                    = "weir-testbed-${each.key}"
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "side" {
  for_each      = local.ranges
  project       = var.project
  region        = var.region
  name          = "weir-testbed-${each.key}"
  network       = google_compute_network.side[each.key].id
  ip_cidr_range = each.value
}

resource "google_compute_address" "managed" {
  project = var.project
  region  = var.region
  name    = "weir-testbed-managed"
}

resource "google_compute_router" "managed" {
  project = var.project
  region  = var.region
  name    = "weir-testbed"
  network = google_compute_network.side["client"].id
}

resource "google_compute_router_nat" "managed" {
  project                            = var.project
  region                             = var.region
  name                               = "weir-testbed"
  router                             = google_compute_router.managed.name
  nat_ip_allocate_option             = "MANUAL_ONLY"
  nat_ips                            = [google_compute_address.managed.self_link]
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
  # As many connections at a time as the workloads open.
  min_ports_per_vm = 32768
}

resource "google_compute_firewall" "between" {
  for_each      = local.ranges
  project       = var.project
  name          = "weir-testbed-between-${each.key}"
  network       = google_compute_network.side[each.key].id
  description   = "All between the hosts, and from Cloud NAT to the server's public address"
  source_ranges = concat(values(local.ranges), ["${google_compute_address.managed.address}/32"])
  allow {
    protocol = "all"
  }
}

resource "google_compute_firewall" "ssh" {
  project       = var.project
  name          = "weir-testbed-ssh"
  network       = google_compute_network.side["server"].id
  source_ranges = ["${var.my_address}/32"]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_instance" "host" {
  for_each     = local.hosts
  project      = var.project
  zone         = var.zone
  name         = "weir-${each.key}"
  machine_type = var.machine_type
  # The gateway forwards packets of others.
  can_ip_forward = each.key == "gateway"
  metadata = {
    user-data = "#cloud-config\npackages: [nftables, iptables]\n"
    ssh-keys  = "weir:${var.public_key}"
  }
  boot_disk {
    initialize_params {
      image = data.google_compute_image.ubuntu.self_link
    }
  }
  dynamic "network_interface" {
    for_each = each.value
    content {
      subnetwork = google_compute_subnetwork.side[network_interface.value.side].id
      network_ip = network_interface.value.address
      dynamic "access_config" {
        for_each = network_interface.value.public ? [1] : []
        content {}
      }
    }
  }
  # Packages of the first boot come by this way.
  depends_on = [google_compute_router_nat.managed]
}

# From each side through the gateway to the other; back only for the variant that forwards without translating.
resource "google_compute_route" "through_gateway" {
  for_each    = { client = { to = "server", by = local.inside }, server = { to = "client", by = local.outside } }
  project     = var.project
  name        = "weir-testbed-from-${each.key}"
  network     = google_compute_network.side[each.key].id
  dest_range  = local.ranges[each.value.to]
  next_hop_ip = each.value.by
  depends_on  = [google_compute_instance.host]
}

module "testbed" {
  source         = "../../testbed"
  user           = "weir"
  managed_option = "gcp-cloud-nat"
  client         = local.hosts.client[0].address
  # Ubuntu's names of the first and the second interface.
  gateway = {
    public            = google_compute_instance.host["gateway"].network_interface[0].access_config[0].nat_ip
    inside_interface  = "ens5"
    inside_address    = local.inside
    outside_interface = "ens4"
    outside_address   = local.outside
  }
  server = {
    private = local.hosts.server[0].address
    public  = google_compute_instance.host["server"].network_interface[0].access_config[0].nat_ip
  }
}

output "scenario" {
  value = module.testbed.scenario
}

output "ssh_config" {
  value = module.testbed.ssh_config
}
