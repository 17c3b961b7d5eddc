//! The servers' configuration: one file of weir's own, nothing of the host's.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::failed;
use crate::Error;

/// The inputs of a configuration.
#[derive(Debug)]
pub(super) struct ServerSetup<'a> {
    /// The folder of its files; weir's own paths have no quotes or blanks.
    pub(super) folder: &'a Path,
    pub(super) bind: SocketAddr,
    pub(super) workers: usize,
    /// Connections that the load has at a time.
    pub(super) connections: u32,
    pub(super) is_root: bool,
}

/// Connections of one worker: all of them may come to it, and as many may still be on their way out.
fn room(connections: u32) -> u32 {
    connections.saturating_mul(2).saturating_add(512)
}

/// The group of the user `nobody`: `nogroup` on Debian, `nobody` elsewhere.
fn group_of_nobody() -> &'static str {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    if groups.lines().any(|line| line.starts_with("nogroup:")) { "nogroup" } else { "nobody" }
}

/// nginx's configuration and arguments. `sendfile` and `tcp_nopush` are as in Debian's own; what is switched off would be
/// disk, and connections are kept for as long as the client wants.
pub(super) fn nginx(place: &ServerSetup<'_>, tls: bool) -> (String, Vec<String>) {
    let folder = place.folder.display();
    let room = room(place.connections);
    let user = match place.is_root {
        true => format!("user nobody {};\n", group_of_nobody()),
        false => String::new(),
    };
    let temporary: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].iter().fold(String::new(), |mut all, kind| {
            // A String takes whatever is written to it.
            let _ = writeln!(all, "    {kind}_temp_path \"{folder}/{kind}\";");
            all
        });
    let (listen, certificate) = match tls {
        true => (
            " ssl",
            format!(
                "        ssl_certificate \"{folder}/certificate.pem\";\n        ssl_certificate_key \"{folder}/key.pem\";\n"
            ),
        ),
        false => ("", String::new()),
    };
    let text = format!(
        "{user}daemon off;\nworker_processes {workers};\nworker_rlimit_nofile {files};\npid \"{folder}/pid\";\n\
         error_log stderr crit;\n\
         events {{\n    worker_connections {room};\n}}\n\
         http {{\n    access_log off;\n    log_not_found off;\n    server_tokens off;\n    default_type application/octet-stream;\n\
         \x20   sendfile on;\n    tcp_nopush on;\n    open_file_cache max=16 inactive=1h;\n    open_file_cache_valid 1h;\n\
         \x20   keepalive_timeout 1h;\n    keepalive_requests 1000000000;\n{temporary}\
         \x20   server {{\n        listen {bind} backlog=65535{listen};\n        root \"{folder}/files\";\n{certificate}    }}\n}}\n",
        workers = place.workers,
        // Listening socket, channel, log, the file itself.
        files = room + 64,
        bind = place.bind,
    );
    let file = place.folder.join("server.conf");
    // -e: or it would open the log that it was built with before it reads where to log.
    let args = ["-e", "stderr", "-p", &folder.to_string(), "-c", &file.display().to_string()];
    (text, args.map(str::to_owned).to_vec())
}

/// Folders of Apache's modules on Debian, Fedora and Alpine.
const MODULES: [&str; 3] = ["/usr/lib/apache2/modules", "/usr/lib64/httpd/modules", "/usr/lib/apache2"];

/// Threads of one of Apache's processes.
const APACHE_THREADS: u32 = 64;

/// Apache's configuration and arguments.
pub(super) fn apache(place: &ServerSetup<'_>) -> Result<(String, Vec<String>), Error> {
    let modules = MODULES.map(PathBuf::from).into_iter().find(|p| p.join("mod_mpm_event.so").exists());
    let modules = modules.ok_or_else(|| {
        failed("apache2", "its module mpm_event is not installed; run `apt-get install apache2-bin`")
    })?;
    let folder = place.folder.display();
    let mut text = format!(
        "ServerName weir\nServerRoot \"{folder}\"\nPidFile \"{folder}/pid\"\nDefaultRuntimeDir \"{folder}\"\n\
         ErrorLog /dev/stderr\nLogLevel crit\n"
    );
    let mut load = |name: &str, file: &str| {
        let path = modules.join(file);
        // Some builds have them inside.
        if path.exists() {
            // A String takes whatever is written to it.
            let _ = writeln!(text, "LoadModule {name} \"{}\"", path.display());
        }
    };
    load("mpm_event_module", "mod_mpm_event.so");
    load("authz_core_module", "mod_authz_core.so");
    load("unixd_module", "mod_unixd.so");
    if place.is_root {
        let _ = writeln!(text, "User nobody\nGroup {}", group_of_nobody());
    }
    let threads = APACHE_THREADS;
    // A thread for each request that is being answered; connections that wait take none.
    let processes = (place.connections.div_ceil(threads)).clamp(place.workers as u32, 64);
    let _ = write!(
        text,
        "Listen {bind}\nListenBacklog 65535\nDocumentRoot \"{folder}/files\"\n\
         <Directory \"{folder}/files\">\n    Require all granted\n    AllowOverride None\n</Directory>\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 3600\n\
         ServerLimit {processes}\nStartServers {processes}\nThreadsPerChild {threads}\nThreadLimit {threads}\n\
         MaxRequestWorkers {all}\nMinSpareThreads {threads}\nMaxSpareThreads {all}\nAsyncRequestWorkerFactor 64\n\
         MaxConnectionsPerChild 0\n",
        bind = place.bind,
        all = processes * threads,
    );
    let file = place.folder.join("server.conf");
    let args = ["-D", "FOREGROUND", "-f", &file.display().to_string()].map(str::to_owned).to_vec();
    Ok((text, args))
}
