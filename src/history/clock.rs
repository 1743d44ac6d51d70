//! A clock that costs a few nanoseconds: the processor's counter, converted to microseconds when a snapshot is
//! written.

#[cfg(not(target_arch = "aarch64"))]
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads the processor's counter, or nanoseconds where the processor has no counter with a constant rate.
#[inline]
pub(in crate::history) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if has_invariant_tsc() {
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads the virtual counter, which Linux makes readable for every process.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        return ticks;
    }
    #[cfg(not(target_arch = "aarch64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Whether the counter has a constant rate in every power state, and on all cores (invariant TSC).
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_invariant_tsc() -> bool {
    use core::arch::x86_64::__cpuid;
    static INVARIANT: OnceLock<bool> = OnceLock::new();
    *INVARIANT.get_or_init(|| __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0)
}

/// One moment, as every clock shows it.
#[derive(Debug, Clone, Copy)]
pub(in crate::history) struct Anchor {
    ticks: u64,
    moment: Instant,
    /// Since 1970.
    microseconds: u64,
}

impl Anchor {
    pub(in crate::history) fn now() -> Anchor {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Anchor {
            ticks: ticks(),
            moment: Instant::now(),
            microseconds: since.as_micros() as u64,
        }
    }

    /// A clock from this moment and the present.
    pub(in crate::history) fn clock(self) -> Clock {
        Clock {
            from: self,
            to: Anchor::now(),
        }
    }
}

/// Two moments, from which the counter's rate follows.
pub(in crate::history) struct Clock {
    from: Anchor,
    to: Anchor,
}

impl Clock {
    /// Converts to microseconds since 1970, as the system's clock is set now. The system's clock may have been set
    /// since `from`.
    pub(in crate::history) fn microseconds(&self, ticks: u64) -> u64 {
        let since = |start: u64| u128::from(self.to.ticks.saturating_sub(start));
        let passed = self.to.moment.duration_since(self.from.moment).as_micros();
        let ago = since(ticks.max(self.from.ticks)) * passed / since(self.from.ticks).max(1);
        self.to.microseconds.saturating_sub(ago as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn setting_the_system_clock_keeps_intervals() {
        let moment = Instant::now();
        let from = Anchor {
            ticks: 1_000,
            moment,
            microseconds: 5,
        };
        // A board that starts without the time of day and sets its clock later.
        let to = Anchor {
            ticks: 3_000,
            moment: moment + Duration::from_secs(2),
            microseconds: 1_800_000_000_000_000,
        };
        let clock = Clock { from, to };
        let ago = [0, 1_000, 2_000, 3_000, 4_000].map(|ticks| to.microseconds - clock.microseconds(ticks));
        assert_eq!(ago, [2_000_000, 2_000_000, 1_000_000, 0, 0]);
    }
}
