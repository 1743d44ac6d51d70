//! Who requests memory, as the slow path distinguishes them.

use crate::pool::free_space::{COMMON, Owner};
use crate::pool::{Pool, StreamView};
use crate::support::error::{Error, Result};

/// The requester, as the slow path sees it.
#[derive(Clone, Copy)]
pub(super) enum Requester<'a> {
    /// A caller without a stream.
    NoStream,
    /// A stream, and its own free space.
    Stream(&'a StreamView, Owner),
    /// A stream without an id, which has no free space of its own.
    PerFreeEvents(&'a StreamView),
    /// A capturing stream: its capture's free space and number.
    Capture(Owner, u32),
}

impl Requester<'_> {
    /// The owner of the free space that the requester may use besides common space.
    pub(super) fn owner(&self, pinned: bool) -> Owner {
        match self {
            Requester::NoStream | Requester::PerFreeEvents(_) => COMMON,
            // The host may write to the block before the stream gets there, so only memory whose work has completed is
            // safe.
            Requester::Stream(..) if pinned => COMMON,
            Requester::Stream(_, owner) | Requester::Capture(owner, _) => *owner,
        }
    }

    /// The owner in whose name the requester's blocks are handed out: the arena that they go back to.
    pub(super) fn arena(&self, pinned: bool) -> Owner {
        match self {
            Requester::Stream(_, owner) if !pinned => *owner,
            _ => COMMON,
        }
    }

    /// An error where the requester's stream is gone, and its free space may be another owner's.
    pub(super) fn check_owner(&self, pool: &Pool) -> Result<()> {
        match self {
            Requester::Stream(view, owner) => view.check_owner(pool, *owner),
            _ => Ok(()),
        }
    }

    /// Whether the request belongs to a capture.
    pub(super) fn is_capture(&self) -> bool {
        matches!(self, Requester::Capture(..))
    }
}

impl StreamView {
    /// A requester that waited without the lock may find its stream gone, and its free space with another owner.
    pub(super) fn check_owner(&self, pool: &Pool, owner: Owner) -> Result<()> {
        let (_, inner) = pool.caches.lock(self.key);
        match inner.served() {
            Some(served) if served.owner == owner && served.id == self.id => Ok(()),
            _ => Err(Error::InvalidArgument(
                "the stream was destroyed during the call".into(),
            )),
        }
    }
}
