//! Frames of compiled code, found by unwind tables. Frame pointers are not needed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use framehop::{FrameAddress, MustNotAllocateDuringUnwind, Unwinder};

use super::frame::Running;
use super::modules::{self, Modules};
use super::python::Reader;
use super::{MAX_FRAMES, stack_memory};

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Cache, UnwindRegsAarch64 as Regs};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64 as Regs};

/// The bits of a return address. Code that signs its return addresses (-mbranch-protection) leaves a signature above them on
/// the stack. Linux gives programs addresses of 48 bits, or of 39 with some kernels; larger ones only on request.
#[cfg(target_arch = "aarch64")]
const ADDRESS: framehop::aarch64::PtrAuthMask = framehop::aarch64::PtrAuthMask((1 << 48) - 1);

/// The registers from which a stack is unwound.
#[derive(Debug, Clone, Copy)]
pub(in crate::history::stack) struct Registers {
    pc: u64,
    sp: u64,
    fp: u64,
    #[cfg(target_arch = "aarch64")]
    lr: u64,
}

impl Registers {
    /// The registers in the function that calls this.
    #[inline(always)]
    pub(in crate::history::stack) fn here() -> Registers {
        #[cfg(target_arch = "x86_64")]
        {
            let (pc, sp, fp);
            // SAFETY: copies registers and changes nothing.
            unsafe {
                core::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) fp,
                    options(nomem, nostack, preserves_flags));
            }
            Registers { pc, sp, fp }
        }
        #[cfg(target_arch = "aarch64")]
        {
            let (pc, sp, fp, lr);
            // SAFETY: copies registers and changes nothing.
            unsafe {
                core::arch::asm!("adr {}, .", "mov {}, sp", "mov {}, x29", "mov {}, x30", out(reg) pc, out(reg) sp,
                    out(reg) fp, out(reg) lr, options(nomem, nostack, preserves_flags));
            }
            Registers { pc, sp, fp, lr }
        }
    }

    fn regs(self) -> Regs {
        #[cfg(target_arch = "x86_64")]
        return Regs::new(self.pc, self.sp, self.fp);
        #[cfg(target_arch = "aarch64")]
        return Regs::new_with_ptr_auth_mask(ADDRESS, self.lr, self.sp, self.fp);
    }
}

/// What a thread needs to take its stacks.
pub(in crate::history::stack) struct Thread {
    pub(in crate::history::stack) modules: Arc<Modules>,
    cache: Cache<MustNotAllocateDuringUnwind>,
    stack: Range<u64>,
    /// The stack that was taken last.
    pub(in crate::history::stack) frames: [u64; MAX_FRAMES],
    pub(in crate::history::stack) python: [Running; MAX_FRAMES],
    /// Made when Python runs on this thread.
    pub(in crate::history::stack) reader: Option<Box<Reader>>,
}

impl Thread {
    pub(in crate::history::stack) fn new() -> Box<Thread> {
        Box::new(Thread {
            modules: modules::current(),
            cache: Cache::new_in(),
            stack: stack_memory::bounds(),
            frames: [0; MAX_FRAMES],
            python: [Running::NONE; MAX_FRAMES],
            reader: None,
        })
    }

    /// Whether this thread runs on its own stack, and not on one for signal handlers.
    pub(in crate::history::stack) fn is_on_its_stack(&self, registers: Registers) -> bool {
        self.stack.is_empty() || self.stack.contains(&registers.sp)
    }

    /// Takes the list of libraries of now.
    #[inline]
    pub(in crate::history::stack) fn update(&mut self) {
        if !self.modules.is_current() {
            self.modules = modules::current();
        }
    }

    /// Takes the return addresses of the stack at `registers`; returns their number.
    pub(in crate::history::stack) fn unwind(&mut self, registers: Registers) -> usize {
        self.update();
        let own = self.stack.contains(&registers.sp);
        let known = if own { registers.sp..self.stack.end } else { 0..0 };
        let mut read = |address| stack_memory::read(&known, address);
        let mut regs = registers.regs();
        let mut at = FrameAddress::from_instruction_pointer(registers.pc);
        let mut count = 0;
        while count < MAX_FRAMES {
            let tables = &self.modules.tables;
            let Ok(Some(pc)) = tables.unwind_frame(at, &mut regs, &mut self.cache, &mut read) else {
                break;
            };
            let Some(next) = FrameAddress::from_return_address(pc) else {
                break;
            };
            self.frames[count] = pc;
            count += 1;
            at = next;
            if pc == TRAMPOLINE.load(Ordering::Relaxed)
                && count < MAX_FRAMES
                && let Some(interrupted) = interrupted(&mut regs, &mut read)
            {
                // This is an instruction's address, not a return address. Names are looked up at the address less
                // one.
                self.frames[count] = interrupted + 1;
                count += 1;
                at = FrameAddress::from_instruction_pointer(interrupted);
            }
        }
        count
    }

    /// Updates what is known of libraries and signal handlers. Returns whether the last stack has to be taken again
    /// because something has changed.
    #[cold]
    pub(in crate::history::stack) fn catch_up(&mut self, registers: Registers, count: usize) -> bool {
        modules::refresh_if_changed();
        let found = find_trampoline();
        found | !self.modules.is_current() | self.load_missing(registers, count)
    }

    /// Reads the missing unwind tables of libraries that the stack goes through. Returns whether there were any.
    #[cold]
    pub(in crate::history::stack) fn load_missing(&mut self, registers: Registers, count: usize) -> bool {
        self.update();
        // Without this library's own tables, the stack may have no frame at all.
        let here = [registers.pc + 1];
        let wanted = self.modules.without_tables(here.iter().chain(&self.frames[..count]));
        if wanted.is_empty() {
            return false;
        }
        modules::load(&wanted);
        self.modules = modules::current();
        true
    }
}

/// The address that signal handlers return to; 0 while it is not known.
static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);

/// Finds the address that signal handlers return to, from any installed handler. Returns whether it is newly found.
#[cfg(target_arch = "x86_64")]
fn find_trampoline() -> bool {
    #[repr(C)]
    struct SignalAction {
        handler: usize,
        flags: u64,
        restorer: u64,
        mask: u64,
    }
    const RESTORER: u64 = 0x0400_0000;
    if TRAMPOLINE.load(Ordering::Relaxed) != 0 {
        return false;
    }
    for signal in 1..=64 {
        let mut action = SignalAction {
            handler: 0,
            flags: 0,
            restorer: 0,
            mask: 0,
        };
        // SAFETY: asks for a signal's action, which has this layout in the kernel, and changes none.
        let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, 0, &raw mut action, 8) };
        if asked == 0 && action.handler > 1 && action.flags & RESTORER != 0 && action.restorer != 0 {
            TRAMPOLINE.store(action.restorer, Ordering::Relaxed);
            return true;
        }
    }
    false
}

/// The kernel's own trampoline is not recognised by its address, so a stack ends at the handler.
#[cfg(not(target_arch = "x86_64"))]
fn find_trampoline() -> bool {
    false
}

/// At a trampoline, finds the interrupted instruction in the context that the kernel left on the stack.
#[cfg(target_arch = "x86_64")]
fn interrupted(regs: &mut Regs, read: &mut impl FnMut(u64) -> Result<u64, ()>) -> Option<u64> {
    const BP: u64 = 120;
    const SP: u64 = 160;
    const IP: u64 = 168;
    let context = regs.sp();
    let (bp, sp, ip) = (
        read(context + BP).ok()?,
        read(context + SP).ok()?,
        read(context + IP).ok()?,
    );
    *regs = Regs::new(ip, sp, bp);
    (ip != 0).then_some(ip)
}

#[cfg(not(target_arch = "x86_64"))]
fn interrupted(_: &mut Regs, _: &mut impl FnMut(u64) -> Result<u64, ()>) -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "aarch64"))]
mod tests {
    use super::*;

    #[test]
    fn signatures_of_return_addresses_are_stripped() {
        // Where Linux puts libraries and programs.
        for address in [0xffff_a320_6000, 0xaaaa_b54f_7000, 0x7f_8012_3450] {
            for signature in [0, 0x7f << 48, 0x55 << 48 | 0xff << 56] {
                let registers = Registers {
                    pc: 0,
                    sp: 0,
                    fp: 0,
                    lr: signature | address,
                };
                assert_eq!(registers.regs().lr(), address, "{signature:#x}");
            }
        }
    }
}
