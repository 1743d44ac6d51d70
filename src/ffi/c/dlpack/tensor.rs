//! DLPack's managed tensors, each of which is an owner of a block.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::trtalloc_dlpack_block;
use crate::ffi::c::arguments::pointer;
use crate::ffi::call;

/// DLPack's DLTensor.
#[repr(C)]
pub(super) struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLPack's DLManagedTensor, before version 1.0.
#[repr(C)]
pub(super) struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<extern "C" fn(*mut Managed)>,
}

/// DLPack's DLManagedTensorVersioned.
#[repr(C)]
pub(super) struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

pub(super) const UNVERSIONED_NAME: &CStr = c"dltensor";
pub(super) const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// A managed tensor as it is allocated: an owner of the block, and the numbers that the tensor points to.
struct Lent<T> {
    /// The consumer's pointer is to this field, whose `context` is the whole object.
    managed: T,
    extents: Box<[i64]>,
    strides: Box<[i64]>,
    _block: Arc<trtalloc_dlpack_block>,
}

/// What the two forms of a managed tensor have in common.
pub(super) trait Form: Sized {
    fn new(tensor: DlTensor) -> Self;
    /// Its tensor and its context.
    fn parts(&mut self) -> (&mut DlTensor, &mut *mut c_void);
    fn context(&self) -> *mut c_void;
}

impl Form for Managed {
    fn new(tensor: DlTensor) -> Managed {
        Managed {
            tensor,
            context: null_mut(),
            deleter: Some(delete::<Managed>),
        }
    }
    fn parts(&mut self) -> (&mut DlTensor, &mut *mut c_void) {
        (&mut self.tensor, &mut self.context)
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Form for Versioned {
    fn new(tensor: DlTensor) -> Versioned {
        Versioned {
            major: 1,
            minor: 0,
            context: null_mut(),
            deleter: Some(delete::<Versioned>),
            flags: 0,
            tensor,
        }
    }
    fn parts(&mut self) -> (&mut DlTensor, &mut *mut c_void) {
        (&mut self.tensor, &mut self.context)
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// The deleter that the consumer calls. NULL is ignored.
pub(super) extern "C" fn delete<T: Form>(managed: *mut T) {
    call::guarded("the deleter of a DLPack tensor", (), || {
        // SAFETY: null, or from `lend`, and the consumer calls the deleter once.
        if let Some(managed) = unsafe { managed.as_ref() } {
            // SAFETY: as above; `lend` leaked the object.
            drop(unsafe { Box::from_raw(managed.context().cast::<Lent<T>>()) });
        }
        Ok(())
    });
}

/// A new owner of the block as a managed tensor.
pub(super) fn lend<T: Form>(block: &Arc<trtalloc_dlpack_block>, (code, bits): (u8, u8), extents: &[i64]) -> *mut T {
    let mut strides = vec![1; extents.len()];
    for at in (1..extents.len()).rev() {
        // An overflow is one of a tensor without elements, whose strides lead nowhere.
        strides[at - 1] = i64::wrapping_mul(strides[at], extents[at].max(1));
    }
    let tensor = DlTensor {
        data: pointer(block.memory.lock().address as usize),
        device_type: block.device_type,
        device: block.dlpack_device(),
        rank: extents.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let lent = Box::leak(Box::new(Lent {
        managed: T::new(tensor),
        extents: extents.into(),
        strides: strides.into(),
        _block: block.clone(),
    }));
    let (shape, strides) = (lent.extents.as_mut_ptr(), lent.strides.as_mut_ptr());
    let whole = std::ptr::from_mut(lent);
    // SAFETY: the object was leaked, and is not shared yet.
    unsafe {
        let (tensor, context) = (*whole).managed.parts();
        (tensor.shape, tensor.strides, *context) = (shape, strides, whole.cast());
        &raw mut (*whole).managed
    }
}
