# The user data of deploy/cloud-init, for all clouds: the same files as deploy/cloud-init/render writes. No provider is needed.

variable "settings" {
  description = "Settings of nat.conf, such as RANGES, PACKAGE and PACKAGE_SHA256."
  type        = map(string)
  validation {
    condition     = alltrue([for value in values(var.settings) : !can(regex("[\"$`\\\\\n]", value))])
    error_message = "A value has no quotes, dollars, backslashes or line ends."
  }
  validation {
    condition     = alltrue([for key in keys(var.settings) : can(regex("(?m)^${key}=", file("${path.module}/../../cloud-init/nat.conf")))])
    error_message = "Every key is a setting of deploy/cloud-init/nat.conf."
  }
}

locals {
  source = "${path.module}/../../cloud-init"
  # The later assignment wins.
  conf = join("", concat(
    [file("${local.source}/nat.conf"), "\n# From Terraform:\n"],
    [for key, value in var.settings : "${key}=\"${value}\"\n"],
  ))
  files = {
    "/etc/weir-nat.conf"                                        = { mode = "0644", content = local.conf }
    "/usr/local/sbin/weir-nat"                                  = { mode = "0755", content = file("${local.source}/weir-nat") }
    "/etc/systemd/system/weir-nat.service"                      = { mode = "0644", content = file("${local.source}/weir-nat.service") }
    "/etc/systemd/system/weir-nat-tune.service"                 = { mode = "0644", content = file("${local.source}/weir-nat-tune.service") }
    "/etc/systemd/system/weir-fastpath.service.d/weir-nat.conf" = { mode = "0644", content = file("${local.source}/weir-fastpath.conf") }
  }
}

output "user_data" {
  value = join("\n", ["#cloud-config", yamlencode({
    packages    = ["nftables", "curl"]
    write_files = [for path, file in local.files : { path = path, permissions = file.mode, content = file.content }]
    runcmd      = [["/usr/local/sbin/weir-nat", "first-boot"]]
  })])
}
