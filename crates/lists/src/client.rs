//! Files over HTTPS from servers that are not trusted beyond what TLS proves of them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED, TRANSFER_ENCODING,
};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Timeout};

use crate::error::Error;

/// Paths of the trusted certificate authorities on Debian, Alpine and Fedora.
const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"];
/// Largest file of authorities, bytes: Debian's has a quarter of a megabyte.
const LARGEST_BUNDLE: u64 = 16 << 20;
/// A publisher that moved needs one or two.
const REDIRECTS: u32 = 5;
/// For one address of the server, with the TLS handshake.
const CONNECT: Duration = Duration::from_secs(15);
/// For the head of an answer, once the request is sent.
const ANSWER: Duration = Duration::from_secs(30);

/// For the next bytes of a file that has begun to come.
const SILENCE: Duration = Duration::from_secs(30);

/// Limits for the download of one file.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the file. The largest registry's has about 20 MB.
    pub bytes: u64,
    /// Time from the first look-up of a name to the last byte, redirects included.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 64 << 20, time: Duration::from_secs(300) }
    }
}

/// An HTTPS client. It verifies every server, and there is no way to ask it not to.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    limits: Limits,
}

/// Validators of the local copy, so that the server need not send it again (RFC 9110, section 13.1).
#[derive(Debug, Clone, Default)]
pub(crate) struct Known<'a> {
    pub(crate) etag: Option<&'a str>,
    pub(crate) last_modified: Option<&'a str>,
}

/// A server's answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The copy that we have is the one it has.
    NotModified,
    /// It has no such file.
    Absent,
    /// The file.
    File(Download),
}

/// A whole file, and how to ask whether it changed.
#[derive(Debug)]
pub(crate) struct Download {
    pub(crate) bytes: Vec<u8>,
    pub(crate) etag: Option<String>,
    pub(crate) last_modified: Option<String>,
}

impl Client {
    /// Trusts the authorities in a PEM file and no other, or without one those of the system.
    ///
    /// # Errors
    /// No authority can be read.
    pub fn new(authorities: Option<&Path>, limits: Limits) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(read_authorities(authorities)?)))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Config::builder()
            .tls_config(tls)
            // Also for what a redirect leads to.
            .https_only(true)
            .max_redirects(REDIRECTS)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION"), " (address lists; one request per file)"))
            .timeout_global(Some(limits.time))
            .timeout_connect(Some(CONNECT.min(limits.time)))
            .timeout_recv_response(Some(ANSWER.min(limits.time)))
            .timeout_per_read(Some(SILENCE.min(limits.time)))
            .build();
        Ok(Client { agent: Agent::new_with_config(config), limits })
    }

    /// Asks for a file; `most` bytes at most.
    pub(crate) fn get(&self, url: &str, known: &Known<'_>, most: u64) -> Result<Answer, Error> {
        let most = most.min(self.limits.bytes);
        let fail = |e: ureq::Error| self.failure(url, e);
        let mut request = self.agent.get(url);
        if let Some(etag) = known.etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(time) = known.last_modified {
            request = request.header(IF_MODIFIED_SINCE, time);
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404 | 410)) => return Ok(Answer::Absent),
            Err(e) => return Err(fail(e)),
        };
        match response.status().as_u16() {
            200 => {}
            304 if known.etag.is_some() || known.last_modified.is_some() => return Ok(Answer::NotModified),
            status => return Err(Error::answer(url, format!("status {status}, which was not asked for"))),
        }
        check_head(url, response.headers(), most)?;
        let word = |name: HeaderName| short_header(response.headers(), &name);
        let (etag, last_modified) = (word(ETAG), word(LAST_MODIFIED));
        let mut bytes = Vec::new();
        // One more than may be, to tell a file of exactly that size from a larger one.
        let mut body = response.body_mut().as_reader().take(most + 1);
        body.read_to_end(&mut bytes).map_err(|e| fail(ureq::Error::from(e)))?;
        if bytes.len() as u64 > most {
            return Err(Error::TooLarge { url: url.to_owned(), most });
        }
        Ok(Answer::File(Download { bytes, etag, last_modified }))
    }

    /// In words that say what to do.
    fn failure(&self, url: &str, error: ureq::Error) -> Error {
        let reason = match error {
            ureq::Error::RequireHttpsOnly(target) => {
                format!("it redirects to {target}, which is not https: refused")
            }
            ureq::Error::TooManyRedirects => format!("it redirects more than {REDIRECTS} times"),
            ureq::Error::Timeout(Timeout::Global) => {
                format!("it was not there within {} s (--timeout)", self.limits.time.as_secs_f64())
            }
            ureq::Error::Timeout(what) => format!("it is too slow: time ran out at `{what}`"),
            ureq::Error::StatusCode(status) => format!("status {status}"),
            ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                "the connection ended before the file did".to_owned()
            }
            ureq::Error::Rustls(e) => format!("TLS: {e}"),
            ureq::Error::Io(e) => match e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                // An error of the handshake comes wrapped as one of the connection.
                Some(e) => format!("TLS: {e}"),
                None => e.to_string(),
            },
            ureq::Error::HostNotFound => "the name of its host is not known here".to_owned(),
            other => other.to_string(),
        };
        Error::answer(url, reason)
    }
}

/// Refuses what should not even be read.
fn check_head(url: &str, headers: &HeaderMap, most: u64) -> Result<(), Error> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    if let Some(coding) = text(CONTENT_ENCODING).filter(|c| !c.eq_ignore_ascii_case("identity")) {
        return Err(Error::answer(url, format!("it is sent as `{coding}`, which was not asked for")));
    }
    let declared = text(CONTENT_LENGTH).and_then(|l| l.parse::<u64>().ok());
    if declared.is_some_and(|length| length > most) {
        return Err(Error::TooLarge { url: url.to_owned(), most });
    }
    // A body may also end with the connection (RFC 9112, section 6.3); one that was cut off looks the same.
    let chunked = text(TRANSFER_ENCODING).is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    if declared.is_none() && !chunked {
        return Err(Error::answer(
            url,
            "the server does not say where the file ends, so that a cut would not be seen",
        ));
    }
    Ok(())
}

/// A value that is sent back as it is: kept only if it is short.
fn short_header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    (!value.is_empty() && value.len() <= 256).then(|| value.to_owned())
}

/// An address to download from: `https`, a host, and nothing secret in it, since it is written into the cache and printed.
///
/// # Errors
/// If the address cannot be used, with the reason.
pub fn check_url(url: &str) -> Result<(), Error> {
    let refuse = |reason: &str| Err(Error::Url { url: url.to_owned(), reason: reason.to_owned() });
    let Ok(uri) = url.parse::<Uri>() else { return refuse("it is no address") };
    let Some(authority) = uri.authority() else { return refuse("expected https://HOST/PATH") };
    if uri.scheme_str() != Some("https") {
        return refuse("only https is used");
    }
    if authority.as_str().contains('@') {
        return refuse("it has a user name in it, which would be stored and shown");
    }
    Ok(())
}

fn read_authorities(path: Option<&Path>) -> Result<Vec<Certificate<'static>>, Error> {
    let found = match path {
        Some(path) => path.to_owned(),
        None => {
            let found = SYSTEM_BUNDLES.map(PathBuf::from).into_iter().find(|p| p.exists());
            found.ok_or_else(|| Error::Authorities {
                path: SYSTEM_BUNDLES[0].to_owned(),
                reason: "this host has no list of certificate authorities; install `ca-certificates`, or name a file with --ca"
                    .to_owned(),
            })?
        }
    };
    let fail = |reason: String| Error::Authorities { path: found.display().to_string(), reason };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(&found).map_err(|e| fail(e.to_string()))?;
    file.take(LARGEST_BUNDLE).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&bytes) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| fail(e.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() { Err(fail("it holds no certificate".into())) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_without_secrets_over_https() {
        assert!(check_url("https://198.18.0.1:8443/pub/list").is_ok());
        for (url, word) in [
            ("http://198.18.0.1/list", "only https"),
            ("ftp://198.18.0.1/list", "only https"),
            ("https://user:secret@198.18.0.1/list", "user name"),
            ("/etc/passwd", "expected https"),
            ("list of mine", "no address"),
        ] {
            let error = check_url(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn authorities_that_cannot_be_read_are_named() {
        let error = Client::new(Some(Path::new("/no/such/file")), Limits::default()).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
        let error = Client::new(Some(Path::new("/dev/null")), Limits::default()).unwrap_err();
        assert!(error.to_string().contains("no certificate"), "{error}");
    }
}
