//! A node's private key.

use std::fmt;
use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use linux_net::WireGuardKey;

/// A private key of Curve25519, in the order of RFC 7748.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey {
    bytes: WireGuardKey,
    public: WireGuardKey,
}

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

    /// The key of a text, as `wg genkey` writes it.
    pub fn parse(text: &str) -> Option<Self> {
        key_of(text.trim()).map(Self::clamped)
    }

    /// Writes it as `wg genkey` does.
    ///
    /// # Errors
    /// As `out` does.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", BASE64_STANDARD.encode(self.bytes))
    }

    fn clamped(mut key: WireGuardKey) -> Self {
        key[0] &= 248;
        key[31] = key[31] & 127 | 64;
        let public = x25519_dalek::x25519(key, x25519_dalek::X25519_BASEPOINT_BYTES);
        Self { bytes: key, public }
    }

    /// The public key that belongs to it.
    pub fn public(&self) -> WireGuardKey {
        self.public
    }

    /// Its bytes, for the device.
    pub fn bytes(&self) -> WireGuardKey {
        self.bytes
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

    /// Alice's of RFC 7748, section 6.1.
    #[test]
    fn the_public_key_is_that_of_the_rfc() {
        let private = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        let key = PrivateKey::clamped(key_of(private).unwrap());
        assert_eq!(BASE64_STANDARD.encode(key.public()), public);
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_stays_out_of_messages() {
        let key = PrivateKey::generate().unwrap();
        let mut text = Vec::new();
        key.write(&mut text).unwrap();
        assert_eq!(PrivateKey::parse(std::str::from_utf8(&text).unwrap()), Some(key.clone()));
        assert_ne!(PrivateKey::generate().unwrap(), key);
        assert!(!format!("{key:?}").contains(&BASE64_STANDARD.encode(key.bytes())));
        assert_eq!(PrivateKey::parse("AAAA\n"), None);
    }
}
