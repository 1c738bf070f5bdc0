//! Buffers that connections are read into, used again once what they held is acknowledged.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use fairlead_tunnel::SHARE;
use fairlead_tunnel::frames::SEGMENT_HEADER_BYTES;

/// Bytes that one read takes at most: two batches hold them and a few other frames, so that no
/// third one trails behind.
pub const READ_BYTES: usize = 2 * (2 * SHARE - SEGMENT_HEADER_BYTES) - 64;
/// A read that fills so much of its buffer keeps it; another one is copied out of it.
const KEEP_ABOVE: usize = READ_BYTES / 2;
/// So many buffers wait to be used again: 8 MiB.
const MOST_SPARE: usize = 32;

type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

/// The buffer of the next read, and those that wait.
#[derive(Default)]
pub struct Buffers {
    next: Vec<u8>,
    spare: Spare,
}

impl Buffers {
    /// Return an empty buffer with room for `READ_BYTES`.
    pub fn next(&mut self) -> &mut Vec<u8> {
        self.next.clear();
        self.next.reserve(READ_BYTES);
        &mut self.next
    }

    /// Return what was read into `next`.
    pub fn take(&mut self) -> Bytes {
        if self.next.len() < KEEP_ABOVE {
            return Bytes::copy_from_slice(&self.next);
        }
        let next = locked(&self.spare).pop().unwrap_or_default();
        let content = std::mem::replace(&mut self.next, next);
        Bytes::from_owner(Kept {
            content,
            spare: self.spare.clone(),
        })
    }
}

fn locked(spare: &Spare) -> MutexGuard<'_, Vec<Vec<u8>>> {
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a channel keeps until it is acknowledged.
struct Kept {
    content: Vec<u8>,
    spare: Spare,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut spare = locked(&self.spare);
        if spare.len() < MOST_SPARE {
            spare.push(std::mem::take(&mut self.content));
        }
    }
}
