//! Session tickets under keys from files, so that what one node gave a client another one takes.
//!
//! Each file has the form of nginx's: a name of 16 bytes, and 32 or 64 random ones, of which the key is derived. Keys
//! are changed by whoever writes the files; what a ticket holds is safe for as long as they are.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, rand};
use rustls::server::ProducesTickets;

use crate::error::{ProxyError, TicketKeyProblem};

const NAME_BYTES: usize = 16;
/// Of the name and the random bytes: what nginx takes.
const FILE_BYTES: [usize; 2] = [48, 80];
/// Seconds for which clients keep a ticket, as rustls tells them of its own.
const LIFETIME_S: u32 = 12 * 60 * 60;
const SALT: &[u8] = b"tidegate session tickets";

/// Tickets of all nodes that have the same files.
pub(crate) struct SharedTickets {
    /// The first encrypts.
    keys: Vec<Key>,
}

struct Key {
    name: [u8; NAME_BYTES],
    /// AES-GCM-SIV (RFC 8452): nodes draw nonces at random under one key for days, and with AES-GCM two that are equal
    /// would give the key away.
    aead: LessSafeKey,
}

impl SharedTickets {
    /// Reads `files`, of which there is one at least.
    pub(crate) fn load(files: &[PathBuf]) -> Result<Arc<Self>, ProxyError> {
        let mut keys: Vec<Key> = Vec::new();
        for path in files {
            let key = Key::read(path).and_then(|key| {
                let is_new = keys.iter().all(|other| other.name != key.name);
                if is_new { Ok(key) } else { Err(TicketKeyProblem::Twice) }
            });
            keys.push(key.map_err(|source| ProxyError::TicketKey { path: path.clone(), source })?);
        }
        Ok(Arc::new(Self { keys }))
    }
}

impl Key {
    fn read(path: &Path) -> Result<Self, TicketKeyProblem> {
        let bytes = fs::read(path).map_err(TicketKeyProblem::Unreadable)?;
        if !FILE_BYTES.contains(&bytes.len()) {
            return Err(TicketKeyProblem::Length { bytes: bytes.len() });
        }
        let (name, secret) =
            bytes.split_first_chunk::<NAME_BYTES>().ok_or(TicketKeyProblem::Length { bytes: bytes.len() })?;
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret);
        let of_name = [&name[..]];
        let unbound = derived.expand(&of_name, &AES_256_GCM_SIV).expect("a key is shorter than what can be derived");
        Ok(Self { name: *name, aead: LessSafeKey::new(UnboundKey::from(unbound)) })
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let sealing = Nonce::assume_unique_for_key(nonce);
        self.aead.seal_in_place_append_tag(sealing, Aad::from(self.name), &mut sealed).ok()?;
        Some([&self.name[..], &nonce, &sealed].concat())
    }

    fn decrypt(&self, rest: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let mut bytes = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.aead.open_in_place(nonce, Aad::from(self.name), &mut bytes).ok()?.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

impl fmt::Debug for SharedTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTickets").field("keys", &self.keys.len()).finish()
    }
}

impl ProducesTickets for SharedTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_S
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.first()?.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = cipher.split_first_chunk::<NAME_BYTES>()?;
        self.keys.iter().find(|key| key.name == *name)?.decrypt(rest)
    }
}
