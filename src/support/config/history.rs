//! Options of a recording: `off`, `state` or `all`, then `context`, `stacks`, `max_entries` and `device`.

use crate::support::error::{Error, Result};

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordingMode {
    /// Nothing.
    #[default]
    Off,
    /// For each live block, where it was allocated.
    State,
    /// That and the last `max_entries` events.
    All,
}

impl RecordingMode {
    /// The name that the options use.
    pub fn name(self) -> &'static str {
        match self {
            RecordingMode::Off => "off",
            RecordingMode::State => "state",
            RecordingMode::All => "all",
        }
    }
}

/// What gets a stack. Each value includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RecordingContext {
    /// Nothing.
    None,
    /// Live blocks.
    State,
    /// Allocation events.
    Alloc,
    /// Every event.
    #[default]
    All,
}

/// What a stack consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StackKind {
    /// No stacks.
    #[default]
    None,
    /// Frames of compiled code.
    Native,
    /// Frames of the Python interpreter in the process.
    Python,
    /// Both.
    All,
}

/// The options of `trtalloc_history`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingOptions {
    /// `off`, `state` or `all`.
    pub mode: RecordingMode,
    /// `context=`
    pub context: RecordingContext,
    /// `stacks=`
    pub stacks: StackKind,
    /// `max_entries=`: how many events are kept, from 1 to [`RecordingOptions::MAX_ENTRIES`].
    pub max_entries: u64,
    /// `device=`: the only device whose events are recorded; `None`: every device.
    pub device: Option<i32>,
}

impl Default for RecordingOptions {
    fn default() -> RecordingOptions {
        RecordingOptions {
            mode: RecordingMode::Off,
            context: RecordingContext::All,
            stacks: StackKind::None,
            max_entries: 100_000,
            device: None,
        }
    }
}

impl RecordingOptions {
    /// The maximum of `max_entries`: a history of 4 GiB.
    pub const MAX_ENTRIES: u64 = 1 << 26;

    /// Reads `mode,key=value,key=value`.
    pub fn parse(text: &str) -> Result<RecordingOptions> {
        let mut options = RecordingOptions::default();
        let mut items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        options.set("history", items.next().unwrap_or_default())?;
        for item in items {
            let Some((key, value)) = item.split_once('=') else {
                return Err(Error::InvalidArgument(format!("history: `{item}` is not key=value")));
            };
            options.set(key, value)?;
        }
        Ok(options)
    }

    /// Sets one of `history`, `context`, `stacks`, `max_entries` and `device`; on an error nothing changes.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_ascii_lowercase());
        let refused = |expected: &str| {
            Err(Error::InvalidArgument(format!(
                "history: {key} cannot be `{value}`: {expected}"
            )))
        };
        match key.as_str() {
            "history" => match value.as_str() {
                "off" => self.mode = RecordingMode::Off,
                "state" => self.mode = RecordingMode::State,
                "all" => self.mode = RecordingMode::All,
                _ => return refused("off, state or all"),
            },
            "context" => match value.as_str() {
                "none" => self.context = RecordingContext::None,
                "state" => self.context = RecordingContext::State,
                "alloc" => self.context = RecordingContext::Alloc,
                "all" => self.context = RecordingContext::All,
                _ => return refused("none, state, alloc or all"),
            },
            "stacks" => match value.as_str() {
                "none" => self.stacks = StackKind::None,
                "native" => self.stacks = StackKind::Native,
                "python" => self.stacks = StackKind::Python,
                "all" => self.stacks = StackKind::All,
                _ => return refused("none, native, python or all"),
            },
            "max_entries" => match value.parse::<u64>() {
                Ok(entries @ 1..=RecordingOptions::MAX_ENTRIES) => self.max_entries = entries,
                _ => return refused(&format!("a number from 1 to {}", RecordingOptions::MAX_ENTRIES)),
            },
            "device" => match value.parse::<i32>() {
                Ok(-1) => self.device = None,
                Ok(device @ 0..=63) => self.device = Some(device),
                _ => return refused("a device's number, or -1 for all"),
            },
            _ => return Err(Error::InvalidArgument(format!("history: unknown option `{key}`"))),
        }
        Ok(())
    }

    /// The kind of stacks that this recording takes.
    pub fn stacks(&self) -> StackKind {
        if self.mode == RecordingMode::Off || self.context == RecordingContext::None {
            StackKind::None
        } else {
            self.stacks
        }
    }

    /// Packs the options except `max_entries` into one word, which is 0 exactly if nothing is recorded.
    pub(crate) fn packed(&self) -> u32 {
        if self.mode == RecordingMode::Off {
            return 0;
        }
        let device = self.device.map_or(0, |device| device as u32 + 1);
        self.mode as u32 | (self.context as u32) << 4 | (self.stacks as u32) << 8 | device << 16
    }

    pub(crate) fn unpacked(word: u32) -> RecordingOptions {
        let mode = [RecordingMode::Off, RecordingMode::State, RecordingMode::All][(word & 3) as usize % 3];
        let context = [
            RecordingContext::None,
            RecordingContext::State,
            RecordingContext::Alloc,
            RecordingContext::All,
        ][(word >> 4 & 3) as usize];
        let stacks = [StackKind::None, StackKind::Native, StackKind::Python, StackKind::All][(word >> 8 & 3) as usize];
        RecordingOptions {
            mode,
            context,
            stacks,
            device: (word >> 16).checked_sub(1).map(|device| device as i32),
            ..RecordingOptions::default()
        }
    }

    pub(crate) fn covers(&self, device: i32) -> bool {
        self.mode != RecordingMode::Off && self.device.is_none_or(|only| only == device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_option_is_parsed() {
        let options = RecordingOptions::parse(" ALL , context=alloc,stacks=Native, max_entries=7,device=3").unwrap();
        let expected = RecordingOptions {
            mode: RecordingMode::All,
            context: RecordingContext::Alloc,
            stacks: StackKind::Native,
            max_entries: 7,
            device: Some(3),
        };
        assert_eq!(options, expected);
        let unpacked = RecordingOptions::unpacked(options.packed());
        assert_eq!(
            unpacked,
            RecordingOptions {
                max_entries: RecordingOptions::default().max_entries,
                ..expected
            }
        );
        assert_eq!(RecordingOptions::parse("off").unwrap().packed(), 0);
        let most = RecordingOptions::parse("all,max_entries=67108864").unwrap().max_entries;
        assert_eq!(most, RecordingOptions::MAX_ENTRIES);
        let error = RecordingOptions::parse("all,max_entries=67108865").unwrap_err();
        assert!(error.to_string().contains("a number from 1 to 67108864"), "{error}");
        for bad in [
            "",
            "on",
            "all,context",
            "all,context=some",
            "all,max_entries=0",
            "all,device=64",
            "state,x=1",
            "off,stacks=",
        ] {
            assert!(RecordingOptions::parse(bad).is_err(), "{bad}");
        }
    }
}
