//! TLS by rustls: the client's end of one connection, fed with bytes and asked for bytes.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::Error;

/// Paths of the trusted certificate authorities on Debian, Alpine and Fedora.
const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"];

/// State shared by all connections of a trial.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

fn refused(reason: impl ToString) -> Error {
    Error::Program { program: "TLS".into(), reason: reason.to_string() }
}

impl Tls {
    /// `name` is the server's, an address if it has none. Without `ca` the system's authorities are trusted.
    pub(super) fn new(
        name: Option<&str>,
        address: IpAddr,
        insecure: bool,
        ca: Option<&Path>,
    ) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(refused)?;
        let mut config = if insecure {
            let trusting = Arc::new(Trusting(provider));
            builder.dangerous().with_custom_certificate_verifier(trusting).with_no_client_auth()
        } else {
            builder.with_root_certificates(authorities(ca)?).with_no_client_auth()
        };
        // A handshake is a handshake: resumed ones would make the second connection cheaper than the first.
        config.resumption = rustls::client::Resumption::disabled();
        let name = match name {
            Some(name) => ServerName::try_from(name.to_owned()).map_err(refused)?,
            None => ServerName::IpAddress(address.into()),
        };
        Ok(Tls { config: Arc::new(config), name })
    }

    pub(super) fn session(&self) -> Result<Session, rustls::Error> {
        ClientConnection::new(self.config.clone(), self.name.clone()).map(|c| Session(Box::new(c)))
    }
}

fn authorities(ca: Option<&Path>) -> Result<RootCertStore, Error> {
    let path = match ca {
        Some(path) => path,
        None => SYSTEM_BUNDLES.map(Path::new).into_iter().find(|p| p.exists()).ok_or_else(|| {
            refused("this host has no list of certificate authorities; install `ca-certificates`, or set `ca` or `insecure`")
        })?,
    };
    let fail = |e: &dyn ToString| refused(format!("{}: {}", path.display(), e.to_string()));
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| fail(&e))? {
        let certificate = certificate.map_err(|e| fail(&e))?;
        // A system's list may hold some that rustls cannot read; one of the user's own must be readable.
        let added = store.add(certificate);
        if ca.is_some() {
            added.map_err(|e| fail(&e))?;
        }
    }
    if store.is_empty() { Err(fail(&"holds no certificate")) } else { Ok(store) }
}

/// One connection's TLS.
#[derive(Debug)]
pub(super) struct Session(Box<ClientConnection>);

/// The result of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// More is needed.
    Nothing,
    /// So many bytes of plain text are in the buffer.
    Plain(usize),
    /// The server said in TLS that it closes.
    Closed,
}

impl Session {
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Take a request to be sent.
    pub(super) fn say(&mut self, request: &[u8]) -> io::Result<()> {
        self.0.writer().write_all(request)
    }

    /// Send what is to be sent. False if the socket takes no more now.
    pub(super) fn flush(&mut self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        while self.0.wants_write() {
            match self.0.write_tls(&mut Socket(fd)) {
                Ok(_) => {}
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN) => return Ok(false),
                    Some(Errno::INTR) => {}
                    errno => return Err(errno.unwrap_or(Errno::IO)),
                },
            }
        }
        Ok(true)
    }

    /// Take some of the received bytes; what it took is gone from `bytes`.
    pub(super) fn hear(&mut self, bytes: &mut &[u8], plain: &mut [u8]) -> Result<Heard, String> {
        if !bytes.is_empty() {
            self.0.read_tls(bytes).map_err(|e| e.to_string())?;
            self.0.process_new_packets().map_err(|e| e.to_string())?;
        }
        match self.0.reader().read(plain) {
            Ok(0) => Ok(Heard::Closed),
            Ok(n) => Ok(Heard::Plain(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Heard::Nothing),
            Err(e) => Err(e.to_string()),
        }
    }
}

struct Socket<'a>(BorrowedFd<'a>);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `insecure`: any certificate will do, but the signatures of the handshake are still checked, so that it costs the same.
#[derive(Debug)]
struct Trusting(Arc<CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
