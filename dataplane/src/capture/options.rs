//! Interface descriptions of pcapng and the time of their packets.

use std::sync::Arc;
use std::time::Duration;

use super::Fault;
use super::bytes::Fields;
use super::link::LinkType;

const END_OF_OPTIONS: u16 = 0;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;

/// Properties of an interface's packets, from its description block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: Option<Arc<str>>,
    /// What its packets begin with; `None` where that is not understood.
    pub(super) link: Option<LinkType>,
    /// Longest part of a packet that was kept, in bytes; 0 stands for all of it.
    pub(super) snap_length: u32,
    resolution: Resolution,
    /// Seconds to add to every time.
    offset: i64,
}

/// Takes the next option: code and value.
pub(super) fn next<'a>(options: &mut Fields<'a>) -> Result<Option<(u16, &'a [u8])>, Fault> {
    let (Some(code), Some(length)) = (options.u16(), options.u16()) else { return Ok(None) };
    if code == END_OF_OPTIONS {
        return Ok(None);
    }
    let value = options.take(usize::from(length)).ok_or(Fault::OptionLength { code })?;
    // Values are padded to 32 bits; the last one's padding may be missing.
    let padding = usize::from(length).wrapping_neg() % 4;
    options.take(padding.min(options.rest().len()));
    Ok(Some((code, value)))
}

/// The length of one tick of a packet's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolution {
    /// 10^-n seconds.
    Decimal(u8),
    /// 2^-n seconds.
    Binary(u8),
}

impl Interface {
    /// From the options at the end of an interface description block.
    pub(super) fn from_options(snap_length: u32, mut options: Fields<'_>) -> Result<Self, Fault> {
        let mut interface = Self {
            name: None,
            link: Some(LinkType::Ethernet),
            snap_length,
            resolution: Resolution::Decimal(6),
            offset: 0,
        };
        while let Some((code, value)) = next(&mut options)? {
            match (code, value) {
                (IF_NAME, name) => {
                    let name = String::from_utf8_lossy(name);
                    let name = name.trim_end_matches('\0');
                    interface.name = (!name.is_empty()).then(|| Arc::from(name));
                }
                (IF_TSRESOL, [exponent]) => {
                    interface.resolution = match exponent & 0x80 {
                        0 => Resolution::Decimal(*exponent),
                        _ => Resolution::Binary(exponent & 0x7f),
                    };
                }
                (IF_TSOFFSET, value) => {
                    let value = value.try_into().map_err(|_| Fault::OptionLength { code })?;
                    interface.offset = options.order().u64(value) as i64;
                }
                _ => {}
            }
        }
        Ok(interface)
    }

    /// The time that `ticks` stand for; times before 1970 become its first moment.
    pub(super) fn time(&self, ticks: u64) -> Duration {
        const NANOS: u128 = 1_000_000_000;
        let nanos = match self.resolution {
            Resolution::Decimal(n @ 0..=9) => u128::from(ticks) * 10u128.pow(9 - u32::from(n)),
            Resolution::Decimal(n) => 10u128
                .checked_pow(u32::from(n) - 9)
                .map_or(0, |per_nano| u128::from(ticks) / per_nano),
            Resolution::Binary(n) => (u128::from(ticks) * NANOS) >> n,
        };
        // 64-bit ticks of a second or less: the seconds fit into 64 bits.
        let seconds = ((nanos / NANOS) as u64).saturating_add_signed(self.offset);
        Duration::new(seconds, (nanos % NANOS) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::ByteOrder;
    use super::*;

    fn with(options: &[u8], order: ByteOrder) -> Interface {
        Interface::from_options(0, Fields::new(options, order)).expect("options are well formed")
    }

    #[test]
    fn microseconds_unless_told() {
        let interface = with(&[], ByteOrder::Little);
        assert_eq!(interface.time(1_500_000), Duration::from_millis(1500));
    }

    #[test]
    fn decimal_and_binary_resolutions() {
        let decimal = |n| with(&[9, 0, 1, 0, n, 0, 0, 0], ByteOrder::Little);
        assert_eq!(decimal(9).time(5), Duration::from_nanos(5));
        assert_eq!(decimal(0).time(5), Duration::from_secs(5));
        assert_eq!(decimal(12).time(5_000), Duration::from_nanos(5));
        assert_eq!(decimal(127).time(u64::MAX), Duration::ZERO);
        let binary = |n: u8| with(&[9, 0, 1, 0, 0x80 | n, 0, 0, 0], ByteOrder::Little);
        assert_eq!(binary(10).time(1536), Duration::from_millis(1500));
        assert_eq!(binary(0).time(u64::MAX), Duration::from_secs(u64::MAX));
        assert_eq!(binary(127).time(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn offset_in_the_sections_byte_order() {
        let big = with(&[0, 14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 60], ByteOrder::Big);
        assert_eq!(big.time(1_000_000), Duration::from_secs(61));
        let before =
            with(&[14, 0, 8, 0, 255, 255, 255, 255, 255, 255, 255, 255], ByteOrder::Little);
        assert_eq!(before.time(500_000), Duration::from_millis(500));
    }

    #[test]
    fn name_ends_at_the_end_of_options() {
        let options = [0, 2, 0, 3, b'a', b'/', b'b', 0, 0, 0, 0, 0, 0, 2, 0, 1, b'x', 0, 0, 0];
        assert_eq!(with(&options, ByteOrder::Big).name.as_deref(), Some("a/b"));
    }

    #[test]
    fn option_past_its_block() {
        let fault = Interface::from_options(0, Fields::new(&[2, 0, 9, 0, b'x'], ByteOrder::Little));
        assert!(matches!(fault, Err(Fault::OptionLength { code: 2 })), "{fault:?}");
    }
}
