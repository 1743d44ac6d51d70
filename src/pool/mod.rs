//! All that one device owns.
