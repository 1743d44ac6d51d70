//! The pool learns of contexts from calls that are made in them.

use super::*;

impl Reclaimer {
    /// Notes that a context uses the pool: memory freed without a stream waits for its work too from now on. For a green
    /// context its primary context is noted. It fails where the driver does not return the context's id, because the pool
    /// could not notice another context with the same handle then.
    pub(in crate::pool) fn note_context(&mut self, calls: &DriverCalls, context: Context) -> Result<()> {
        let identity = calls.identity(context)?;
        match self.contexts.known.iter().find(|(known, _)| *known == context) {
            Some((_, known)) if *known == identity => return Ok(()),
            // The pool has no event in a context that is not identified. So it does not matter whether this context is
            // the one that was noted: if that one is gone, its work is gone too.
            Some((_, Identity::Unidentified)) | None => {}
            // Another context has a known handle, so the old context is gone.
            Some(_) => self.forget_context(context),
        }
        let covering = self.contexts.covering(calls, context, identity)?;
        if covering != context {
            self.note_context(calls, covering)?;
        }
        self.contexts.known.retain(|(known, _)| *known != context);
        if covering == context {
            self.contexts.known.push((context, identity));
        }
        Ok(())
    }

    /// As [`Reclaimer::note_context`], for a free, which is never refused. A context whose id the driver does not
    /// return counts too, and nothing is covered by an event before the context is identified.
    pub(in crate::pool) fn note_context_of_free(&mut self, calls: &DriverCalls, context: Context) {
        match self.note_context(calls, context) {
            // The driver may say what covers the work of the current context all the same.
            Err(error) if !is_of_no_context(&error) && !self.contexts.is_known(context) => {
                match self.contexts.covering_of_current(calls, context) {
                    Ok(primary) if primary != context => self.note_context_of_free(calls, primary),
                    _ => self.contexts.add_unidentified(calls, context),
                }
            }
            _ => {}
        }
    }

    /// Notes what may be at a known handle by now: a context that was not identified, or that came to the handle of one that
    /// is gone. It fails where there is none, and where the driver does not return the context's id. A context that may be a
    /// green one stays unidentified until a thread in which it is current calls the pool, or until it is gone.
    pub(super) fn note_handle(&mut self, calls: &DriverCalls, context: Context) -> Result<()> {
        if !self.contexts.may_be_green(calls, context) {
            return self.note_context(calls, context);
        }
        calls.identity(context)?;
        self.contexts.add_unidentified(calls, context);
        Ok(())
    }

    /// Notes the primary context of each device that can use the pool's memory. Such a context may have work on a block that
    /// is freed without a stream, and never call the pool. The pool learns of other contexts only when they call it.
    pub(in crate::pool) fn note_primaries(&mut self, calls: &DriverCalls) -> Result<()> {
        for at in 0..self.contexts.devices.len() {
            let (device, noted) = self.contexts.devices[at];
            if noted.is_some_and(|context| self.contexts.is_known(context)) {
                continue;
            }
            let noted = with_primary(calls, device, |primary| {
                self.note_context(calls, primary).map(|()| primary)
            })?;
            if let Some(primary) = noted {
                self.contexts.devices[at].1 = Some(primary?);
            }
        }
        Ok(())
    }

    /// As [`Reclaimer::note_context`], for a context that has just answered and so exists. Without ids there is nothing
    /// more to query.
    pub(in crate::pool) fn note_live_context(&mut self, calls: &DriverCalls, context: Context) -> Result<()> {
        if !calls.driver().features().stream_ids && self.contexts.is_known(context) {
            return Ok(());
        }
        self.note_context(calls, context)
    }

    /// Notes that the context of a caller without a stream uses the pool from now on, even if it is another device's
    /// context.
    #[inline]
    pub(in crate::pool) fn note_current(&mut self, calls: &DriverCalls) -> Result<()> {
        self.contexts.queries += 1;
        match calls.driver().current_context()? {
            Some(context) if context == self.contexts.own.context && self.contexts.own_is_there => Ok(()),
            Some(context) => self.note_context(calls, context),
            None => Ok(()),
        }
    }

    /// As [`Reclaimer::note_current`], for a free, which is never refused.
    #[inline]
    pub(in crate::pool) fn note_current_of_free(&mut self, calls: &DriverCalls) {
        self.contexts.queries += 1;
        let context = match calls.driver().current_context() {
            Ok(None) => return,
            Ok(Some(context)) => context,
            Err(_) => return self.note_unknown_of_free(calls),
        };
        let identity = match calls.has_ids() {
            true => {
                self.contexts.queries += 1;
                calls.driver().context_id(context).map(Identity::Id)
            }
            false => Ok(Identity::Handle),
        };
        if !identity.is_ok_and(|identity| self.contexts.known.contains(&(context, identity))) {
            self.note_unknown_of_free(calls);
        }
    }

    #[cold]
    fn note_unknown_of_free(&mut self, calls: &DriverCalls) {
        if let Ok(Some(context)) = calls.query(|driver| driver.current_context()) {
            self.note_context_of_free(calls, context);
        }
    }
}
