//! The interposed names. They are written in assembly, because they need the caller's address, and because the function
//! that they call must see the registers and the stack as the caller left them.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};

use super::dynamic_linker::{self, DlSym};
use super::{ObjectType, acts, create, dlsym_wrappers, resolve};

/// Finds the function that a call would have reached; logs an error where there is none.
fn reach(name: &CStr, version: Option<i32>, caller: usize) -> Option<resolve::Real> {
    let real = catch_unwind(AssertUnwindSafe(|| resolve::real(name, version, caller))).ok()?;
    if real.is_none() {
        crate::support::log::init_from_environment();
        tracing::error!("no TensorRT that is loaded, or can be, has {name:?}");
    }
    real
}

unsafe fn linked(kind: ObjectType, logger: *mut c_void, version: i32, caller: usize) -> *mut c_void {
    match reach(kind.function(), Some(version), caller) {
        // SAFETY: the caller's arguments, for the function that they are for.
        Some(real) => unsafe { create(kind, real.function.as_ptr(), logger, version, caller) },
        None => null_mut(),
    }
}

unsafe extern "C-unwind" fn runtime(logger: *mut c_void, version: i32, caller: usize) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { linked(ObjectType::Runtime, logger, version, caller) }
}

unsafe extern "C-unwind" fn builder(logger: *mut c_void, version: i32, caller: usize) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { linked(ObjectType::Builder, logger, version, caller) }
}

/// Refitters need no allocator: a refitter allocates through its engine.
unsafe extern "C-unwind" fn refitter(
    engine: *mut c_void,
    logger: *mut c_void,
    version: i32,
    caller: usize,
) -> *mut c_void {
    type Refitter = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, i32) -> *mut c_void;
    match reach(c"createInferRefitter_INTERNAL", Some(version), caller) {
        // SAFETY: TensorRT's function of this name, with the caller's arguments.
        Some(real) => unsafe {
            std::mem::transmute::<*mut c_void, Refitter>(real.function.as_ptr())(engine, logger, version)
        },
        None => null_mut(),
    }
}

unsafe extern "C-unwind" fn gives_null() -> *mut c_void {
    null_mut()
}

/// The function that `createLeanRuntime` jumps to. No header of TensorRT declares it, so its arguments and result are
/// unknown: it is entered with the registers and the stack that the caller left.
unsafe extern "C-unwind" fn lean(caller: usize) -> usize {
    match reach(c"createLeanRuntime", None, caller) {
        Some(real) => real.function.as_ptr() as usize,
        None => gives_null as unsafe extern "C-unwind" fn() -> *mut c_void as usize,
    }
}

/// The result for `dlsym`: it returns `found`, or jumps to `next` where `found` is null.
#[repr(C)]
struct Lookup {
    found: *mut c_void,
    next: DlSym,
}

unsafe extern "C-unwind" fn lookups(library: *mut c_void, symbol: *const c_char) -> Lookup {
    let next = dynamic_linker::next();
    // SAFETY: dlsym's caller passes a terminated name, or null, which libc handles.
    let kind = unsafe { symbol.as_ref() }.and_then(|_| ObjectType::of(unsafe { CStr::from_ptr(symbol) }));
    let found = match kind {
        Some(kind) => catch_unwind(|| in_front(kind, library, next)).unwrap_or(null_mut()),
        None => null_mut(),
    };
    Lookup { found, next }
}

/// The interposing function for one of this library's names; null where the next dlsym should answer.
fn in_front(kind: ObjectType, library: *mut c_void, next: DlSym) -> *mut c_void {
    // RTLD_DEFAULT and RTLD_NEXT depend on the caller. They find the interposed names where these come first.
    if library.is_null() || library == libc::RTLD_NEXT || !acts() {
        return null_mut();
    }
    // SAFETY: the caller's open library, and a terminated name.
    let Some(real) = NonNull::new(unsafe { next(library, kind.function().as_ptr()) }) else {
        return null_mut();
    };
    match dynamic_linker::LoadedObject::of(real.as_ptr() as usize) {
        Some(module) if !module.is_own() => dlsym_wrappers::in_front_of(kind, real).as_ptr(),
        _ => null_mut(),
    }
}

#[cfg(target_arch = "x86_64")]
mod names {
    use std::arch::naked_asm;
    use std::ffi::{c_char, c_void};

    // The return address is on the stack. Each function ends with a jump, so that it leaves no frame behind.

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createInferRuntime_INTERNAL(logger: *mut c_void, version: i32) -> *mut c_void {
        naked_asm!(".cfi_startproc", "endbr64", "mov rdx, [rsp]", "jmp {}", ".cfi_endproc", sym super::runtime)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createInferBuilder_INTERNAL(logger: *mut c_void, version: i32) -> *mut c_void {
        naked_asm!(".cfi_startproc", "endbr64", "mov rdx, [rsp]", "jmp {}", ".cfi_endproc", sym super::builder)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createInferRefitter_INTERNAL(
        engine: *mut c_void,
        logger: *mut c_void,
        version: i32,
    ) -> *mut c_void {
        naked_asm!(".cfi_startproc", "endbr64", "mov rcx, [rsp]", "jmp {}", ".cfi_endproc", sym super::refitter)
    }

    /// Saves and restores every register that can hold an argument.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createLeanRuntime() {
        naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "push rbp",
            "mov rbp, rsp",
            ".cfi_def_cfa rbp, 16",
            ".cfi_offset rbp, -16",
            "sub rsp, 192",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], rax",
            "movups [rsp + 64], xmm0",
            "movups [rsp + 80], xmm1",
            "movups [rsp + 96], xmm2",
            "movups [rsp + 112], xmm3",
            "movups [rsp + 128], xmm4",
            "movups [rsp + 144], xmm5",
            "movups [rsp + 160], xmm6",
            "movups [rsp + 176], xmm7",
            "mov rdi, [rbp + 8]",
            "call {}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "movups xmm0, [rsp + 64]",
            "movups xmm1, [rsp + 80]",
            "movups xmm2, [rsp + 96]",
            "movups xmm3, [rsp + 112]",
            "movups xmm4, [rsp + 128]",
            "movups xmm5, [rsp + 144]",
            "movups xmm6, [rsp + 160]",
            "movups xmm7, [rsp + 176]",
            "leave",
            ".cfi_def_cfa rsp, 8",
            ".cfi_restore rbp",
            "jmp r11",
            ".cfi_endproc",
            sym super::lean
        )
    }

    /// The next dlsym is entered with the caller's return address, so RTLD_NEXT and RTLD_DEFAULT keep their meaning.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void {
        naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 24",
            "call {}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            ".cfi_adjust_cfa_offset -24",
            "test rax, rax",
            "jz 2f",
            "ret",
            "2:",
            "jmp rdx",
            ".cfi_endproc",
            sym super::lookups
        )
    }
}

#[cfg(target_arch = "aarch64")]
mod names {
    use std::arch::naked_asm;
    use std::ffi::{c_char, c_void};

    // The return address is in x30. Each function ends with a jump, so that it leaves no frame behind.
    // `hint #34` is `bti c`.

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createInferRuntime_INTERNAL(logger: *mut c_void, version: i32) -> *mut c_void {
        naked_asm!(".cfi_startproc", "hint #34", "mov x2, x30", "b {}", ".cfi_endproc", sym super::runtime)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createInferBuilder_INTERNAL(logger: *mut c_void, version: i32) -> *mut c_void {
        naked_asm!(".cfi_startproc", "hint #34", "mov x2, x30", "b {}", ".cfi_endproc", sym super::builder)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createInferRefitter_INTERNAL(
        engine: *mut c_void,
        logger: *mut c_void,
        version: i32,
    ) -> *mut c_void {
        naked_asm!(".cfi_startproc", "hint #34", "mov x3, x30", "b {}", ".cfi_endproc", sym super::refitter)
    }

    /// Saves and restores every register that can hold an argument.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn createLeanRuntime() {
        naked_asm!(
            ".cfi_startproc",
            "hint #34",
            "stp x29, x30, [sp, #-224]!",
            ".cfi_def_cfa_offset 224",
            ".cfi_offset x29, -224",
            ".cfi_offset x30, -216",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "mov x0, x30",
            "bl {}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "br x16",
            ".cfi_endproc",
            sym super::lean
        )
    }

    /// The next dlsym is entered with the caller's return address, so RTLD_NEXT and RTLD_DEFAULT keep their meaning.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void {
        naked_asm!(
            ".cfi_startproc",
            "hint #34",
            "stp x29, x30, [sp, #-32]!",
            ".cfi_def_cfa_offset 32",
            ".cfi_offset x29, -32",
            ".cfi_offset x30, -24",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "bl {}",
            "mov x9, x0",
            "mov x16, x1",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x9, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "br x16",
            ".cfi_endproc",
            sym super::lookups
        )
    }
}
