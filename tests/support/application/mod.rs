//! An application on a device (`device`), and the interfaces by which it calls the allocator (`interface`): for the conformance
//! suite and the bad calls.

pub mod device;
pub mod interface;
