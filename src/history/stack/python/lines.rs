//! The tables from which CPython gets the line of an instruction.

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineTable {
    /// `co_lnotab`, up to 3.9: pairs of a step of the address and a signed step of the line.
    Lnotab,
    /// `co_linetable` of 3.10: pairs of a range's length and the signed step to its line; -128: it has none.
    Ranges,
    /// `co_linetable` since 3.11: entries of several bytes, of which the first has the highest bit set.
    Locations,
}

impl LineTable {
    /// The line of the instruction at `address` bytes from the first one; `None` where it has none.
    pub(super) fn line(self, table: &[u8], first_line: i64, address: i64) -> Option<i64> {
        if address < 0 {
            return Some(first_line);
        }
        match self {
            LineTable::Lnotab => {
                let (mut line, mut at) = (first_line, 0);
                for pair in table.chunks_exact(2) {
                    at += i64::from(pair[0]);
                    if at > address {
                        break;
                    }
                    line += i64::from(pair[1] as i8);
                }
                Some(line)
            }
            LineTable::Ranges => {
                let (mut line, mut end) = (first_line, 0);
                for pair in table.chunks_exact(2) {
                    end += i64::from(pair[0]);
                    let step = pair[1] as i8;
                    if step != -128 {
                        line += i64::from(step);
                    }
                    if address < end {
                        return (step != -128).then_some(line);
                    }
                }
                None
            }
            LineTable::Locations => location(table, first_line, address),
        }
    }
}

/// An entry's first byte has the highest bit, four bits of its kind and three of its length in instructions less one.
/// Only the kinds 10 to 14 change the line. Kind 15 has no line.
fn location(table: &[u8], first_line: i64, address: i64) -> Option<i64> {
    const INSTRUCTION: i64 = 2;
    let (mut line, mut end, mut at) = (first_line, 0, 0);
    while at < table.len() {
        let head = table[at];
        let kind = head >> 3 & 15;
        // Other bytes than a table's must not end the program.
        line = i64::wrapping_add(
            line,
            match kind {
                10..=12 => i64::from(kind) - 10,
                13 | 14 => signed(&table[at + 1..]),
                _ => 0,
            },
        );
        end += (i64::from(head & 7) + 1) * INSTRUCTION;
        if address < end {
            return (kind != 15).then_some(line);
        }
        at += 1;
        while at < table.len() && table[at] & 0x80 == 0 {
            at += 1;
        }
    }
    None
}

/// A number in groups of six bits, the lowest group first; bit 6 says that another group follows. The lowest bit of the
/// number is its sign.
fn signed(bytes: &[u8]) -> i64 {
    let mut number = 0u64;
    for (group, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 63) << (6 * group);
        if byte & 64 == 0 {
            break;
        }
    }
    let value = (number >> 1) as i64;
    if number & 1 == 0 { value } else { -value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables are those of CPython for a function with a jump back, a line far away, and code without a line.
    #[test]
    fn each_format_gives_the_lines_of_an_example() {
        let lines = |format: LineTable, table: &[u8], addresses: &[i64]| -> Vec<Option<i64>> {
            addresses
                .iter()
                .map(|address| format.line(table, 10, *address))
                .collect()
        };
        // 10 at 0, 12 from 4 on, 11 from 10 on, 311 from 14 on (in three steps).
        let lnotab = [4, 2, 6, 0xff, 4, 127, 0, 127, 0, 46];
        assert_eq!(
            lines(LineTable::Lnotab, &lnotab, &[-1, 0, 3, 4, 9, 10, 13, 14, 1000]),
            [10, 10, 10, 12, 12, 11, 11, 311, 311].map(Some)
        );
        // 10 at 0, none from 4 on, 12 from 6 on, 11 from 10 on, 265 from 14 on.
        let ranges = [4, 0, 2, 0x80, 4, 2, 4, 0xff, 0, 127, 8, 127];
        assert_eq!(
            lines(LineTable::Ranges, &ranges, &[-1, 0, 2, 4, 6, 8, 10, 14, 20]),
            [
                Some(10),
                Some(10),
                Some(10),
                None,
                Some(12),
                Some(12),
                Some(11),
                Some(265),
                Some(265)
            ]
        );
        assert_eq!(LineTable::Ranges.line(&ranges, 10, 22), None);
        let locations = [
            0x80 | 10 << 3 | 1,
            5,
            9,              // two instructions of line 10
            0x80 | 15 << 3, // one without a line
            0x80 | 12 << 3 | 1,
            1,
            2, // two of line 12
            0x80 | 13 << 3 | 1,
            3, // two of line 11
            0x80 | 14 << 3 | 7,
            64 | 24,
            9,
            0,
            1,
            2, // eight of line 311: 300 is 2 * 300 in groups of six bits
            0x80 | 3 << 3,
            17, // one of the same line
        ];
        assert_eq!(
            lines(
                LineTable::Locations,
                &locations,
                &[-2, 0, 2, 4, 6, 8, 10, 12, 14, 28, 30, 32]
            ),
            [10, 10, 10, 0, 12, 12, 11, 11, 311, 311, 311, 0].map(|line| (line != 0).then_some(line))
        );
    }

    #[test]
    fn a_table_of_other_bytes_ends() {
        for format in [LineTable::Lnotab, LineTable::Ranges, LineTable::Locations] {
            for byte in 0..=255u8 {
                let _ = format.line(&[byte; 33], 1, 1 << 20);
                let _ = format.line(&[byte; 33], i64::from(i32::MAX), 40);
            }
            let _ = format.line(&[], 1, 0);
        }
    }
}
