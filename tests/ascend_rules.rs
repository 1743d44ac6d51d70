//! Ascend's rules for memory that is carved from one big block ("secondary memory allocation"), and pools over memory that
//! the caller brought where there is no driver: through the C functions, over this process's own memory, which is read and
//! written directly.

mod ascend_rules {
    pub mod exact;
    pub mod no_driver;
    pub mod owners;
    pub mod pool;
    pub mod table;
}
