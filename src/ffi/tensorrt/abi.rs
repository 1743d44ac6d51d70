//! The ABI generations of TensorRT's interfaces, and the versions that have them. A generation is a layout of the
//! virtual functions; `cpp/` has an adapter for each.

use crate::support::error::{Error, Result};

/// The ABIs of `nvinfer1::IGpuAllocator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocatorAbi {
    /// TensorRT 10 and 11, and TensorRT-RTX 1.
    V10 = 0,
    /// TensorRT 8 and 9.
    V8 = 1,
}

impl AllocatorAbi {
    /// The number of generations.
    pub const COUNT: usize = 2;

    /// The generation of a version: `NV_TENSORRT_VERSION`, or the version that createInfer* receives. Below 10000 it is
    /// TensorRT 8 or 9 (8601, 9100), up to 19999 TensorRT-RTX (10300), and from 100000 TensorRT 10 and 11 (101601).
    pub fn of(version: i32) -> Result<AllocatorAbi> {
        match version {
            8000..=9999 => Ok(AllocatorAbi::V8),
            10000..=19999 | 100_000..=119_999 => Ok(AllocatorAbi::V10),
            _ => Err(Error::InvalidArgument(format!(
                "no TensorRT has version {version}, or it is older than 8 or newer than 11"
            ))),
        }
    }
}

/// The ABIs of `nvinfer1::IOutputAllocator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputAbi {
    /// TensorRT 8.5 to 9.
    V8,
    /// TensorRT 10 and 11.
    V10,
    /// TensorRT-RTX: without the functions that TensorRT 10 deprecated.
    Rtx,
}

impl OutputAbi {
    /// The generation of a version, as in [`AllocatorAbi::of`].
    pub fn of(version: i32) -> Result<OutputAbi> {
        match (AllocatorAbi::of(version)?, version) {
            (_, 8000..8500) => Err(Error::InvalidArgument(format!(
                "TensorRT {version} has no output allocators: they came with 8.5"
            ))),
            (AllocatorAbi::V8, _) => Ok(OutputAbi::V8),
            (AllocatorAbi::V10, 10_000..20_000) => Ok(OutputAbi::Rtx),
            (AllocatorAbi::V10, _) => Ok(OutputAbi::V10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_abi() {
        for version in [10000, 10300, 10701, 19999, 100_000, 101_601, 110_400, 119_999] {
            assert_eq!(AllocatorAbi::of(version).ok(), Some(AllocatorAbi::V10), "{version}");
        }
        for version in [8000, 8001, 8200, 8601, 9100, 9300, 9999] {
            assert_eq!(AllocatorAbi::of(version).ok(), Some(AllocatorAbi::V8), "{version}");
        }
        for version in [i32::MIN, -1, 0, 7103, 7999, 20000, 99999, 120_000, i32::MAX] {
            assert!(
                matches!(AllocatorAbi::of(version), Err(Error::InvalidArgument(_))),
                "{version}"
            );
        }
    }

    #[test]
    fn output_allocators_have_an_abi_from_8_5_on() {
        for (version, abi) in [
            (8499, None),
            (8500, Some(OutputAbi::V8)),
            (9300, Some(OutputAbi::V8)),
            (10_000, Some(OutputAbi::Rtx)),
            (19_999, Some(OutputAbi::Rtx)),
            (100_000, Some(OutputAbi::V10)),
            (120_000, None),
        ] {
            assert_eq!(OutputAbi::of(version).ok(), abi, "{version}");
        }
    }
}
