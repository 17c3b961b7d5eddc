# What the testbeds of all clouds share: the scenario, and the ssh configuration that reaches the three hosts. No provider.

variable "user" {
  description = "Login on the hosts; it may use sudo without a password."
  type        = string
}

variable "client" {
  description = "Private address of the client. It has no public one: ssh reaches it through the gateway."
  type        = string
}

variable "gateway" {
  description = "Public address of the gateway, and the interfaces and private addresses towards client and server."
  type = object({
    public            = string
    inside_interface  = string
    inside_address    = string
    outside_interface = string
    outside_address   = string
  })
}

variable "server" {
  description = "Addresses of the server: the private one is reached through the gateway, the public one through the managed NAT."
  type        = object({ private = string, public = string })
}

variable "managed_option" {
  description = "Name of the managed gateway in the price list: weir cost --list"
  type        = string
}

output "scenario" {
  value = templatefile("${path.module}/scenario.toml.tftpl", {
    client = var.client, gateway = var.gateway, server = var.server, managed_option = var.managed_option
  })
}

output "ssh_config" {
  value = <<-EOT
    # weir asks no questions, so the first connection has to learn the keys of the hosts.
    Host *
        User ${var.user}
        StrictHostKeyChecking accept-new
        UserKnownHostsFile known_hosts
    Host gateway
        HostName ${var.gateway.public}
    Host server
        HostName ${var.server.public}
    Host client
        HostName ${var.client}
        ProxyJump gateway
  EOT
}
