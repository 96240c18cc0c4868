# One skilld on every client with Docker. Needs Nomad 1.10.2 or later, and on each client a Docker driver that allows
# privileged containers and directories of the host; docs/deploy.md has that configuration.
variable "image" {
  type    = string
  default = "skilld/daemon:0.1.0"
}

# The image from which the daemon makes containers.
variable "workspace_image" {
  type    = string
  default = "skilld/base:latest"
}

# The group of the socket, and so of the clients.
variable "group" {
  type    = number
  default = 990
}

job "skilld" {
  type = "system"

  # Workspaces survive the restart of their daemon.
  update {
    max_parallel = 1
  }

  group "skilld" {
    # A system job is not placed again: it waits for a Docker that is away or an image that is missing.
    restart {
      attempts = 10
      interval = "5m"
      delay    = "15s"
      mode     = "delay"
    }

    task "skilld" {
      driver = "docker"
      user   = "0:${var.group}"

      # drain_timeout (30 s) plus stop_timeout (10 s), and 5 s to spare. Nomad caps this at the client's
      # max_kill_timeout.
      kill_timeout = "45s"

      config {
        image           = var.image
        args            = ["--config", "/local/skilld.toml"]
        network_mode    = "host"
        pid_mode        = "host"
        cgroupns        = "host"
        cap_drop        = ["all"]
        # User root with one capability. As root it owns Docker's socket and the control groups; CAP_DAC_READ_SEARCH
        # lets it read roots of skills that belong to other users. The client's plugin must allow it (allow_caps).
        cap_add         = ["dac_read_search"]
        readonly_rootfs = true
        security_opt    = ["no-new-privileges"]

        mount {
          type   = "bind"
          source = "/var/run/docker.sock"
          target = "/var/run/docker.sock"
        }

        mount {
          type   = "bind"
          source = "/sys/fs/cgroup"
          target = "/sys/fs/cgroup"
        }

        # At the same path inside and outside, because Docker mounts directories below it into workspaces.
        mount {
          type   = "bind"
          source = "/var/lib/skilld"
          target = "/var/lib/skilld"
        }

        mount {
          type   = "bind"
          source = "/run/skilld"
          target = "/run/skilld"
        }

        mount {
          type     = "bind"
          source   = "/srv/skills"
          target   = "/srv/skills"
          readonly = true
        }
      }

      template {
        destination = "local/skilld.toml"
        data        = <<-END
          [skills]
          roots = ["/srv/skills"]

          [pools.default]
          image = "${var.workspace_image}"
          pull = "missing"
        END
      }

      # The daemon alone. Workspaces are containers of Docker, which Nomad does not count: reserve their memory with
      # the client's reserved block.
      resources {
        cpu = 100
        # server.relay_bytes_max is 512 MiB.
        memory = 1024
      }
    }
  }
}
