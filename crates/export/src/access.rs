//! Who may read the page: a token, and TLS.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::hmac;
use ring::rand::SystemRandom;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Least bytes of a token.
const LEAST_BYTES: usize = 16;
/// Most bytes of a file.
const MOST_BYTES: u64 = 1 << 20;
/// Most bytes of a token: it has to fit into a request.
const MOST_TOKEN_BYTES: usize = 4096;

/// Why a file does not grant access.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, io::Error),
    /// Others could read it, too.
    #[error("{0} is open to others (mode {1:o}): run `chmod {2} {0}`")]
    Open(PathBuf, u32, &'static str),
    /// It does not hold what it should.
    #[error("{0}: {1}")]
    Content(PathBuf, String),
}

/// Reads a file whose mode has none of the bits `forbidden`.
fn read(path: &Path, forbidden: u32, mode: &'static str) -> Result<Vec<u8>, Error> {
    let unreadable = |e| Error::Unreadable(path.to_owned(), e);
    let mut file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(Error::Content(path.to_owned(), format!("not a file of at most {MOST_BYTES} bytes")));
    }
    if about.mode() & forbidden != 0 {
        return Err(Error::Open(path.to_owned(), about.mode() & 0o7777, mode));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// A secret that clients send as `Authorization: Bearer TOKEN` (RFC 6750 section 2.1). It is not kept itself.
pub struct Token {
    key: hmac::Key,
    tag: hmac::Tag,
}

/// Never with what is in it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// The token in a file that only its owner may read, without white space at its end.
    ///
    /// # Errors
    /// As [`Error`] says; also for fewer than 16 bytes, and for bytes that a header cannot carry.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read(path, 0o077, "600")?;
        Token::new(bytes.trim_ascii_end()).map_err(|why| Error::Content(path.to_owned(), why))
    }

    fn new(bytes: &[u8]) -> Result<Self, String> {
        if !(LEAST_BYTES..=MOST_TOKEN_BYTES).contains(&bytes.len()) {
            return Err(format!(
                "the token has {} bytes: {LEAST_BYTES} to {MOST_TOKEN_BYTES} are valid; `head -c 24 /dev/urandom | base64` makes one",
                bytes.len()
            ));
        }
        if !bytes.iter().all(u8::is_ascii_graphic) {
            return Err("the token has blanks, or bytes that are not ASCII".into());
        }
        let random = |_| "the system has no random numbers".to_owned();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(random)?;
        let tag = hmac::sign(&key, bytes);
        Ok(Token { key, tag })
    }

    /// Whether this is the token. The time does not depend on how much of it is right (ring's `hmac::verify`).
    pub fn is(&self, offered: &[u8]) -> bool {
        hmac::verify(&self.key, offered, self.tag.as_ref()).is_ok()
    }
}

/// A certificate and its key, which may be replaced on disk while the server runs.
#[derive(Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    stamp: [Option<(u64, i64, i64)>; 2],
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads a chain of certificates and its private key, both PEM.
    ///
    /// # Errors
    /// As [`Error`] says; the key must not be open to others than its owner and group.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, Error> {
        // Stamped before it is read: a change in between is seen later.
        let stamp = [stamp(certificate), stamp(key)];
        let config = Arc::new(load(certificate, key)?);
        Ok(Tls { certificate: certificate.to_owned(), key: key.to_owned(), stamp, config })
    }

    /// Reads both again if a file has changed; true if so.
    ///
    /// # Errors
    /// As [`Tls::read`], once for each change; what was read before stays in use.
    pub fn refresh(&mut self) -> Result<bool, Error> {
        let stamp = [stamp(&self.certificate), stamp(&self.key)];
        if stamp == self.stamp {
            return Ok(false);
        }
        self.stamp = stamp;
        self.config = Arc::new(load(&self.certificate, &self.key)?);
        Ok(true)
    }

    /// For new connections.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

fn stamp(path: &Path) -> Option<(u64, i64, i64)> {
    path.metadata().ok().map(|m| (m.ino(), m.mtime(), m.mtime_nsec()))
}

fn load(certificate: &Path, key: &Path) -> Result<ServerConfig, Error> {
    let of = |path: &Path| {
        let path = path.to_owned();
        move |e: String| Error::Content(path, e)
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(certificate, 0, "")?)
        .collect::<Result<_, _>>()
        .map_err(|e| of(certificate)(e.to_string()))?;
    if chain.is_empty() {
        return Err(of(certificate)("no certificate in PEM".into()));
    }
    // A group such as ssl-cert may read keys on Debian.
    let private = PrivateKeyDer::from_pem_slice(&read(key, 0o037, "640")?)
        .map_err(|e| of(key)(format!("no private key in PEM: {e}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|e| of(certificate)(format!("not usable with {}: {e}", key.display())))
}

/// The proof that a client must give.
#[derive(Debug, Default)]
pub struct Access {
    /// A token.
    pub token: Option<Token>,
    /// TLS.
    pub tls: Option<Tls>,
}

impl Access {
    /// Whether the page may be shown off the loopback.
    pub fn is_guarded(&self) -> bool {
        self.token.is_some() || self.tls.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_token_itself_is_taken() {
        let token = Token::new(b"0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdeF", b"0123456789abcdef0"] {
            assert!(!token.is(other));
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn weak_tokens_are_refused() {
        for weak in [&b"short"[..], b"", b"0123456789 abcdef", b"0123456789abcdef\xff", &[b'a'; 5000]] {
            Token::new(weak).unwrap_err();
        }
    }

    #[test]
    fn a_token_that_others_may_read_is_refused() {
        let path = std::env::temp_dir().join(format!("weir-export-token-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let error = Token::read(&path).unwrap_err().to_string();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
        mode(0o600);
        assert!(Token::read(&path).unwrap().is(b"0123456789abcdef"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Token::read(&path), Err(Error::Unreadable(..))));
    }
}
