//! Sealed batches of carriers that keep order; the rules are in `fairlead_tunnel.records`.

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::Fault;

/// Longest batch.
pub const MAX_BATCH_BYTES: usize = 256 * 1024;
/// Bytes that a record has more than its batch.
pub const TAG_BYTES: usize = 16;
/// Bytes of a record in front of what is sealed.
pub const LENGTH_BYTES: usize = 4;

const EPOCH_BITS: u32 = 16;
const LAST_RECORD: u64 = (1 << 48) - 1;

/// The AEAD of a tunnel's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Suite {
    /// Return the suite of a number in a hello.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Suite::Aes256Gcm),
            2 => Some(Suite::ChaCha20Poly1305),
            _ => None,
        }
    }

    fn nonce(self, number: u64) -> Nonce {
        let counted = match self {
            Suite::Aes256Gcm => number.to_be_bytes(),
            Suite::ChaCha20Poly1305 => number.to_le_bytes(),
        };
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counted);
        Nonce::assume_unique_for_key(nonce)
    }

    fn cipher(self, key: &[u8; 32]) -> LessSafeKey {
        let algorithm = match self {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, key).expect("the length is that of a key"))
    }
}

/// The key of one direction, for records in their order.
struct Turn {
    suite: Suite,
    cipher: LessSafeKey,
    next: u64,
}

impl Turn {
    fn new(suite: Suite, key: [u8; 32]) -> Self {
        Turn {
            suite,
            cipher: suite.cipher(&key),
            next: 0,
        }
    }

    /// Return the number of the next record, under whose key `cipher` is afterwards.
    fn number(&mut self) -> Result<u64, Fault> {
        let number = self.next;
        if number > LAST_RECORD {
            return Err(Fault("the key has sealed all that it may"));
        }
        if number > 0 && number.trailing_zeros() >= EPOCH_BITS {
            self.rekey();
        }
        self.next += 1;
        Ok(number)
    }

    /// Go on to the next key (Noise, section 4.2).
    fn rekey(&mut self) {
        let mut key = [0; 32];
        // The tag is no part of the key.
        let _ = self
            .cipher
            .seal_in_place_separate_tag(self.suite.nonce(u64::MAX), Aad::empty(), &mut key)
            .expect("32 bytes can be sealed");
        self.cipher = self.suite.cipher(&key);
    }
}

/// Seals the batches of one direction.
pub struct Sealer(Turn);

impl Sealer {
    /// Begin with the handshake's key.
    pub fn new(suite: Suite, key: [u8; 32]) -> Self {
        Sealer(Turn::new(suite, key))
    }

    /// Make a record of what stands in `out` behind `start` and its four bytes of length, which a
    /// carrier of messages writes over.
    pub fn seal(&mut self, out: &mut Vec<u8>, start: usize) -> Result<(), Fault> {
        let number = self.0.number()?;
        let nonce = self.0.suite.nonce(number);
        let batch = &mut out[start + LENGTH_BYTES..];
        let length = batch.len() + TAG_BYTES;
        if length > MAX_BATCH_BYTES + TAG_BYTES {
            return Err(Fault("a batch is too long"));
        }
        let tag = self
            .0
            .cipher
            .seal_in_place_separate_tag(nonce, Aad::empty(), batch)
            .map_err(|_| Fault("a batch was not sealed"))?;
        out.extend_from_slice(tag.as_ref());
        out[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_be_bytes());
        Ok(())
    }
}

/// Opens the records of one direction, each in its order.
pub struct Opener(Turn);

impl Opener {
    /// Begin with the handshake's key.
    pub fn new(suite: Suite, key: [u8; 32]) -> Self {
        Opener(Turn::new(suite, key))
    }

    /// Return the length of the record at the start of `received`, or None while it is not whole.
    pub fn whole(received: &[u8]) -> Result<Option<usize>, Fault> {
        let Some(length) = received.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if !(TAG_BYTES..=MAX_BATCH_BYTES + TAG_BYTES).contains(&length) {
            return Err(Fault("a record has no length that a record has"));
        }
        Ok((received.len() - LENGTH_BYTES >= length).then_some(LENGTH_BYTES + length))
    }

    /// Open what was sealed where it stands, behind its length if it has one; returns the batch.
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<&'a mut [u8], Fault> {
        let number = self.0.number()?;
        let nonce = self.0.suite.nonce(number);
        self.0
            .cipher
            .open_in_place(nonce, Aad::empty(), sealed)
            .map_err(|_| Fault("a record was changed, or is not of this connection"))
    }
}
