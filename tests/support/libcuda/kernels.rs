//! Kernels are not simulated. Their functions exist because programs look them up when they are loaded.

use crate::functions;
use crate::model::code::NOT_SUPPORTED;

// The functions ignore their arguments, so they declare none; C's calling convention lets the caller pass them.
functions! {
    2000 fn cuModuleLoadData() |_machine| { Err(NOT_SUPPORTED) }
    2000 fn cuModuleUnload() |_machine| { Err(NOT_SUPPORTED) }
    2000 fn cuModuleGetFunction() |_machine| { Err(NOT_SUPPORTED) }
    2000 fn cuFuncSetCacheConfig() |_machine| { Err(NOT_SUPPORTED) }
    9000 fn cuFuncSetAttribute() |_machine| { Err(NOT_SUPPORTED) }
    4000 fn cuLaunchKernel() |_machine| { Err(NOT_SUPPORTED) }
    9000 fn cuLaunchCooperativeKernel() |_machine| { Err(NOT_SUPPORTED) }
    5050 fn cuLinkCreate_v2() |_machine| { Err(NOT_SUPPORTED) }
    5050 fn cuLinkAddData_v2() |_machine| { Err(NOT_SUPPORTED) }
    5050 fn cuLinkAddFile_v2() |_machine| { Err(NOT_SUPPORTED) }
    5050 fn cuLinkComplete() |_machine| { Err(NOT_SUPPORTED) }
    5050 fn cuLinkDestroy() |_machine| { Err(NOT_SUPPORTED) }
}
