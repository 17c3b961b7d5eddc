//! The key that a server and its clients share, and how each proves to have it without showing it.
//!
//! Both ends contribute 32 random bytes. Each sends HMAC-SHA256 (RFC 2104) over them under the key, with a word that names the
//! direction. So neither proof can be replayed or reflected. The measurement that follows is not encrypted. A random number
//! identifies its data connections and crosses the network in the clear. The key keeps strangers out, but does not protect
//! against an attacker who reads the traffic.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Least bytes of a key.
pub const LEAST_BYTES: usize = 16;

/// Most bytes of a key's file.
const MOST_BYTES: u64 = 4096;

/// Random bytes of one end.
pub type Nonce = [u8; 32];

/// A pre-shared key.
pub struct Key(hmac::Key);

/// Never with what is in it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the key file {0}: {1}")]
    Unreadable(PathBuf, io::Error),
    /// Others could read it, too.
    #[error("the key file {0} is open to others (mode {1:o}): run `chmod 600 {0}`")]
    Open(PathBuf, u32),
    /// Not a file, or far too long.
    #[error("{0} is not a key file: at most {MOST_BYTES} bytes are valid")]
    NoKey(PathBuf),
    /// Too short to keep anyone out.
    #[error(
        "the key has {0} bytes: at least {LEAST_BYTES} are needed; `head -c 24 /dev/urandom | base64` makes one"
    )]
    Short(usize),
}

/// Whose proof it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Client,
    Server,
}

impl Key {
    /// A key of these bytes, without white space at its end.
    ///
    /// # Errors
    /// It is shorter than [`LEAST_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Key, Error> {
        let bytes = bytes.trim_ascii_end();
        if bytes.len() < LEAST_BYTES {
            return Err(Error::Short(bytes.len()));
        }
        Ok(Key(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// A new one as text: 32 random bytes in hexadecimal.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn make() -> io::Result<String> {
        random::<32>().map(|bytes| to_hex(&bytes))
    }

    /// The key in a file that only its owner may read.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn read(path: &Path) -> Result<Key, Error> {
        let unreadable = |e| Error::Unreadable(path.to_owned(), e);
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() || about.len() > MOST_BYTES {
            return Err(Error::NoKey(path.to_owned()));
        }
        if about.mode() & 0o077 != 0 {
            return Err(Error::Open(path.to_owned(), about.mode() & 0o7777));
        }
        let mut bytes = Vec::new();
        file.by_ref().take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        Key::new(&bytes)
    }

    pub(crate) fn prove(&self, end: End, client: &Nonce, server: &Nonce) -> String {
        to_hex(hmac::sign(&self.0, &said(end, client, server)).as_ref())
    }

    /// In constant time (ring's `hmac::verify`).
    pub(crate) fn verify(&self, proof: &str, end: End, client: &Nonce, server: &Nonce) -> bool {
        from_hex::<32>(proof)
            .is_some_and(|tag| hmac::verify(&self.0, &said(end, client, server), &tag).is_ok())
    }
}

fn said(end: End, client: &Nonce, server: &Nonce) -> Vec<u8> {
    let word: &[u8] = match end {
        End::Client => b"weir probe 1 client",
        End::Server => b"weir probe 1 server",
    };
    [word, client, server].concat()
}

/// Random bytes of the system's.
///
/// # Errors
/// The system has none.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |_| io::Error::other("the system gave no random bytes");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Lower-case hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes, if there are `most` or fewer.
pub(crate) fn from_hex_up_to(text: &str, most: usize) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() > 2 * most || !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit)
    {
        return None;
    }
    digits.chunks_exact(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The bytes, if there are exactly `N`.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    from_hex_up_to(text, N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_proof_is_hmac_sha256_of_what_was_said() {
        let key = Key::new(b"0123456789abcdef\n").unwrap();
        let (client, server) = ([1; 32], [2; 32]);
        let proof = key.prove(End::Client, &client, &server);
        // printf 'weir probe 1 client' | cat - <(printf '\1%.0s' {1..32}) <(printf '\2%.0s' {1..32}) |
        //   openssl dgst -sha256 -hmac 0123456789abcdef
        assert_eq!(proof, EXPECTED);
        assert!(key.verify(&proof, End::Client, &client, &server));
        assert!(!key.verify(&proof, End::Server, &client, &server), "turned around");
        assert!(!key.verify(&proof, End::Client, &client, &[3; 32]), "played back");
        let other = Key::new(b"0123456789abcdeg").unwrap();
        assert!(!other.verify(&proof, End::Client, &client, &server));
        for bad in ["", "zz", &proof[1..], &format!("{proof}0"), &proof.replace('0', "é")] {
            assert!(!key.verify(bad, End::Client, &client, &server), "{bad}");
        }
    }

    const EXPECTED: &str = "ca69ec580b1eb143ec8bbd993ac71736bc1e8f035a4e47840ea96981dc01f064";

    #[test]
    fn a_key_file_is_its_owner_s_alone() {
        let path = std::env::temp_dir().join(format!("weir-key-test-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"0123456789abcdef0123\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Key::read(&path)
        };
        assert!(with_mode(0o600).is_ok() && with_mode(0o400).is_ok());
        for mode in [0o640, 0o604, 0o666, 0o610] {
            assert!(matches!(with_mode(mode), Err(Error::Open(..))), "{mode:o}");
        }
        std::fs::write(&path, b"short").unwrap();
        assert!(matches!(with_mode(0o600), Err(Error::Short(5))));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Key::read(&path), Err(Error::Unreadable(..))));
        assert!(matches!(Key::read(Path::new("/dev/zero")), Err(Error::NoKey(_))));
        assert!(!format!("{:?}", Key::new(b"0123456789abcdef").unwrap()).contains("0123"));
    }
}
