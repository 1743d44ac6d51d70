//! The contexts whose work may use a pool's memory.

use std::sync::Arc;

use crate::driver::{Context, DriverError, Failure, RelaxedMode, Result};
use crate::pool::Pool;
use crate::pool::driver_calls::{DriverCalls, Identity, is_of_no_context, is_same};
use crate::pool::reclaim::{OwnContext, Reclaimer};
use crate::support::error;
use crate::sync::atomic::{AtomicU64, Ordering};

mod note;

/// The contexts that have used a pool.
pub struct Contexts {
    /// Their handles, with the identities that they had then.
    known: Vec<(Context, Identity)>,
    /// The pool's own.
    pub own: OwnContext,
    /// The pool's own context existed when the running request began.
    own_is_there: bool,
    /// Green contexts that have used the pool, with the identities that they had then, and the primary context of each, whose
    /// events cover their work: see [`Driver::covering_context`](crate::driver::Driver::covering_context).
    greens: Vec<(Context, Identity, Context)>,
    /// A green context has used the pool, or a context that may be one.
    has_greens: bool,
    /// The devices that can use the pool's memory, each with its primary context once that is known.
    devices: Vec<(i32, Option<Context>)>,
    /// How often the pool forgot a context: see [`Pool::forgotten`].
    forgotten: Arc<AtomicU64>,
    /// The queries that are counted here and not in [`DriverCalls`], where it takes an atomic operation.
    pub queries: u64,
}

impl Contexts {
    /// Only the pool's own context is known. The devices in `devices` can use the pool's memory.
    pub fn new(own: OwnContext, devices: Vec<i32>, forgotten: Arc<AtomicU64>) -> Contexts {
        Contexts {
            devices: devices.into_iter().map(|device| (device, None)).collect(),
            known: vec![(own.context, own.identity)],
            greens: Vec::new(),
            has_greens: false,
            own,
            own_is_there: false,
            forgotten,
            queries: 0,
        }
    }

    /// Whether a context that has used the pool still exists. If it does not, its events may belong to another owner.
    /// None where the driver cannot answer. The device's primary context is checked before each request.
    pub fn is_there(&self, calls: &DriverCalls, context: Context) -> Option<bool> {
        if self.own.primary && self.own.context == context {
            return Some(true);
        }
        match self.known.iter().find(|(known, _)| *known == context) {
            Some((_, identity)) => calls.is_there(context, *identity),
            None => Some(false),
        }
    }

    /// Whether the pool knows the context.
    pub fn is_known(&self, context: Context) -> bool {
        self.known.iter().any(|(known, _)| *known == context)
    }

    /// Whether the pool knows the context, and nothing that tells it from another one at its handle.
    pub fn is_unidentified(&self, context: Context) -> bool {
        self.known.contains(&(context, Identity::Unidentified))
    }

    /// The handles of all contexts that are identified. No call is made in the others: such a context may be a green one that
    /// is current in another thread.
    pub fn identified(&self) -> impl Iterator<Item = Context> {
        let identified = |known: &&(Context, Identity)| known.1 != Identity::Unidentified;
        self.known.iter().filter(identified).map(|(context, _)| *context)
    }

    /// The handles of all known contexts.
    pub fn handles(&self) -> Vec<Context> {
        self.known.iter().map(|(context, _)| *context).collect()
    }

    /// All known contexts with their identities.
    pub fn all(&self) -> &[(Context, Identity)] {
        &self.known
    }

    /// The identity of a green context when it last used the pool.
    pub fn green(&self, context: Context) -> Option<Identity> {
        let green = self.greens.iter().find(|green| green.0 == context);
        green.filter(|_| !self.is_known(context)).map(|green| green.1)
    }

    /// A context that has used the pool, with its identity; of a green one the primary context.
    pub fn noted(&self, context: Context) -> Option<(Context, Identity)> {
        let green = self.greens.iter().find(|green| green.0 == context);
        let of = |context: Context| self.known.iter().find(|(known, _)| *known == context).copied();
        of(context).or_else(|| green.and_then(|(_, _, primary)| of(*primary)))
    }

    /// The context whose events cover the work of a context that is not known: its own, or those of the primary context
    /// of a green one. The driver says so only of the context that is current.
    fn covering(&mut self, calls: &DriverCalls, context: Context, identity: Identity) -> Result<Context> {
        let noted = self
            .greens
            .iter()
            .find(|green| (green.0, green.1) == (context, identity));
        if let Some((_, _, primary)) = noted {
            return Ok(*primary);
        }
        let covering = self.covering_of_current(calls, context)?;
        if covering != context {
            self.greens.retain(|green| green.0 != context);
            self.greens.push((context, identity, covering));
        }
        Ok(covering)
    }

    /// As [`Contexts::covering`], without an identity. A context that is not current counts as an ordinary one.
    fn covering_of_current(&mut self, calls: &DriverCalls, context: Context) -> Result<Context> {
        if !calls.has_ids() || calls.query(|driver| driver.current_context())? != Some(context) {
            return Ok(context);
        }
        let covering = calls.query(|driver| driver.covering_context(context));
        self.has_greens |= covering != Ok(context);
        covering
    }

    /// Whether a context of which only the handle is known may be a green one, which only its own thread may use. No query
    /// shows that elsewhere, but a device's primary context is none. Where no green context was ever seen, it counts as an
    /// ordinary one.
    fn may_be_green(&self, calls: &DriverCalls, context: Context) -> bool {
        let is_current = || calls.query(|driver| driver.current_context()) == Ok(Some(context));
        self.has_greens && calls.has_ids() && !is_current() && !is_primary(calls, context)
    }

    /// Notes the context, which was not identified.
    fn add_unidentified(&mut self, calls: &DriverCalls, context: Context) {
        if !self.is_known(context) {
            self.known.push((context, calls.unidentified()));
        }
    }
}

/// Whether the handle is that of a device's primary context now.
fn is_primary(calls: &DriverCalls, context: Context) -> bool {
    let _relaxed = RelaxedMode::begin(calls.driver());
    let devices = calls.query(|driver| driver.device_count()).unwrap_or_default();
    let is_of = |device| with_primary(calls, device, |primary| primary == context) == Ok(Some(true));
    (0..devices as i32).any(is_of)
}

/// Runs `work` with the device's primary context, if that is active. It stays so meanwhile.
fn with_primary<T>(calls: &DriverCalls, device: i32, work: impl FnOnce(Context) -> T) -> Result<Option<T>> {
    if !calls.query(|driver| driver.primary_active(device))? {
        return Ok(None);
    }
    let _relaxed = RelaxedMode::begin(calls.driver())?;
    let primary = calls.submit(|driver| driver.primary_retain(device))?;
    let outcome = work(primary);
    calls.submit(|driver| driver.primary_release(device))?;
    Ok(Some(outcome))
}

impl Reclaimer {
    /// A context is gone; forgets what was known of it.
    fn forget_context(&mut self, context: Context) {
        self.contexts.known.retain(|(known, _)| *known != context);
        self.pending.context_gone(context);
        self.contexts.forgotten.fetch_add(1, Ordering::Release);
    }

    /// Forgets a context that is gone. Another context at its handle may have streams that could not be distinguished
    /// from the old one's.
    pub(in crate::pool) fn drop_context(&mut self, calls: &DriverCalls, context: Context) {
        self.forget_context(context);
        if !calls.driver().features().stream_ids {
            return;
        }
        match self.note_handle(calls, context) {
            Err(error) if !is_of_no_context(&error) => self.contexts.add_unidentified(calls, context),
            _ => {}
        }
    }

    /// Fails if the pool's own context was reset, because none of its handles may be used again. If the application
    /// created and destroyed it, the pool moves to another one.
    pub(in crate::pool) fn check_context(&mut self, pool: &Pool) -> error::Result<()> {
        let OwnContext {
            context,
            identity,
            primary,
        } = self.contexts.own;
        let there = match identity {
            Identity::Id(_) | Identity::Unidentified => {
                self.contexts.queries += 1;
                is_same(pool.driver().context_id(context).map(Identity::Id), identity)
            }
            Identity::Handle => pool.calls.is_there(context, identity),
        };
        self.contexts.own_is_there = there == Some(true);
        if there != Some(false) {
            return Ok(());
        }
        if primary {
            return Err(pool.failed(DriverError::refused("cuCtxGetId", Failure::ContextDead)));
        }
        self.drop_context(&pool.calls, context);
        self.move_to_primary(pool)
    }

    /// Makes the device's primary context the pool's own.
    pub(in crate::pool) fn move_to_primary(&mut self, pool: &Pool) -> error::Result<()> {
        let _relaxed = RelaxedMode::begin(pool.driver());
        let own = OwnContext::primary(&pool.calls, pool.device).map_err(|error| pool.failed(error))?;
        self.contexts.own = own;
        pool.calls.set_own_context(own.context);
        let noted = self.note_context(&pool.calls, own.context);
        noted.map_err(|error| pool.failed(error))
    }

    /// Forgets contexts that the application has destroyed, and identifies the others. It fails where the pool's own
    /// is destroyed and no other one exists, and where the driver does not return the id of each context, because its
    /// events may belong to another owner then.
    pub(in crate::pool) fn drop_dead_contexts(&mut self, pool: &Pool) -> error::Result<()> {
        self.check_context(pool)?;
        let mut unanswered = false;
        for (context, identity) in self.contexts.known.clone() {
            let there = match identity {
                Identity::Unidentified => match self.note_handle(&pool.calls, context) {
                    Ok(()) => Some(true),
                    Err(error) => is_of_no_context(&error).then_some(false),
                },
                identity => pool.calls.is_there(context, identity),
            };
            if there == Some(false) {
                self.drop_context(&pool.calls, context);
            }
            unanswered |= there.is_none();
        }
        // Another context may have come to the handle of one that was forgotten just now.
        let unidentified = |(_, identity): &(Context, Identity)| *identity == Identity::Unidentified;
        unanswered |= self.contexts.known.iter().any(unidentified);
        match unanswered {
            true => Err(error::Error::Driver(DriverError::refused(
                match pool.calls.has_ids() {
                    true => "cuCtxGetId",
                    false => "cuCtxPushCurrent",
                },
                Failure::Other,
            ))),
            false => Ok(()),
        }
    }

    /// A driver call in `context` failed. If the context is gone, its work is gone too, and this is no error; another
    /// request that waited may have found that out before. If it is the pool's own, or exists and carries a sticky
    /// error, the pool is dead.
    pub(in crate::pool) fn context_failed(
        &mut self,
        pool: &Pool,
        context: Context,
        error: DriverError,
    ) -> error::Result<()> {
        let before = self.contexts.known.clone();
        let _ = self.drop_dead_contexts(pool);
        pool.alive()?;
        let known = self.contexts.known.iter().find(|(known, _)| *known == context);
        let Some((_, identity)) = known.filter(|_| self.contexts.known == before) else {
            return Ok(());
        };
        let ids = pool.driver().features().stream_ids;
        match pool.calls.is_there(context, *identity) {
            // The first query failed, and the context is gone all the same.
            Some(false) => {
                self.drop_context(&pool.calls, context);
                Ok(())
            }
            // Without ids, another context can have its handle.
            Some(true) if !ids && error.failure == Failure::ContextDestroyed => Ok(()),
            Some(true) => Err(pool.failed(error)),
            // The context may be gone, or another one may have its handle; the pool need not die for that.
            None => Err(error::Error::Driver(error)),
        }
    }
}

impl Pool {
    /// The context for the pool's driver calls when no context of the device is current.
    pub fn own_context(&self) -> Context {
        self.core.lock().reclaimer.contexts.own.context
    }

    /// Notes that the stream's context uses the pool from now on.
    pub fn note_stream_context(&self, stream: crate::driver::Stream) -> error::Result<()> {
        let context = self.calls.query(|driver| driver.context_of(stream));
        let context = context.map_err(|error| self.failed(error))?;
        self.core.lock().reclaimer.note_live_context(&self.calls, context)?;
        Ok(())
    }

    /// A stream of `context` could not be queried.
    pub fn stream_failed(&self, context: Context, error: DriverError) {
        let _ = self.core.lock().reclaimer.context_failed(self, context, error);
    }

    /// Runs `work` in the device's primary context, on a thread without a context. That means that context's default
    /// stream, as in the CUDA runtime. That context is the pool's own from then on. None where it is not active yet
    /// and `make` is false.
    pub fn in_primary<T>(&self, make: bool, work: impl FnOnce() -> T) -> error::Result<Option<T>> {
        self.alive()?;
        let primary = {
            let mut core = self.core.lock();
            core.still_open()?;
            if !core.reclaimer.contexts.own.primary {
                let _relaxed = RelaxedMode::begin(self.driver());
                let active = || self.calls.query(|driver| driver.primary_active(self.device));
                if !make && !active().map_err(|error| self.failed(error))? {
                    return Ok(None);
                }
                core.reclaimer.move_to_primary(self)?;
            }
            core.reclaimer.contexts.own.context
        };
        let _current = self.calls.push(None, primary).map_err(|error| self.failed(error))?;
        Ok(Some(work()))
    }

    /// Runs `work` with the pool's own context current.
    pub fn in_own_context<T>(&self, work: impl FnOnce() -> T) -> error::Result<T> {
        let own = self.own_context();
        let _entered = self.calls.enter(own).map_err(|error| self.failed(error))?;
        Ok(work())
    }
}
