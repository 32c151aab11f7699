//! A node's private key.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use linux_net::WireGuardKey;

/// A private key of Curve25519, in the order of RFC 7748.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(WireGuardKey);

impl PrivateKey {
    /// A new key of the kernel's random numbers.
    ///
    /// # Errors
    /// If the kernel gives none.
    pub fn generate() -> io::Result<Self> {
        let mut key = WireGuardKey::default();
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self::clamped(key))
    }

    /// The key of a file, as `wg genkey` writes it; a new one in a file that only this user reads, if there is none.
    ///
    /// # Errors
    /// If the file cannot be read or written, or has no key.
    pub fn open(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => {
                let problem = || io::Error::new(ErrorKind::InvalidData, "it has no WireGuard key");
                key_of(text.trim()).map(Self::clamped).ok_or_else(problem)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let key = Self::generate()?;
                key.write(path)?;
                Ok(key)
            }
            Err(error) => Err(error),
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let next = path.with_extension("next");
        match fs::remove_file(&next) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
        file.write_all(format!("{}\n", BASE64_STANDARD.encode(self.0)).as_bytes())?;
        file.sync_all()?;
        fs::rename(next, path)
    }

    fn clamped(mut key: WireGuardKey) -> Self {
        key[0] &= 248;
        key[31] = key[31] & 127 | 64;
        Self(key)
    }

    /// The public key that belongs to it.
    pub fn public(&self) -> WireGuardKey {
        x25519_dalek::x25519(self.0, x25519_dalek::X25519_BASEPOINT_BYTES)
    }

    /// Its bytes, for the device.
    pub fn bytes(&self) -> WireGuardKey {
        self.0
    }
}

/// The key itself stays out of messages.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

fn key_of(text: &str) -> Option<WireGuardKey> {
    BASE64_STANDARD.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Alice's of RFC 7748, section 6.1.
    #[test]
    fn the_public_key_is_that_of_the_rfc() {
        let private = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        let key = PrivateKey::clamped(key_of(private).unwrap());
        assert_eq!(BASE64_STANDARD.encode(key.public()), public);
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let folder = testkit::TempDir::new("key");
        let path = folder.path().join("key");
        let key = PrivateKey::open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(PrivateKey::open(&path).unwrap(), key);
        assert_ne!(PrivateKey::generate().unwrap(), key);
        assert!(!format!("{key:?}").contains(&BASE64_STANDARD.encode(key.bytes())));
        fs::write(&path, "AAAA\n").unwrap();
        assert!(PrivateKey::open(&path).is_err(), "a damaged key is not replaced");
    }
}
