//! The Huffman code of HPACK (RFC 7541, appendix B).
//!
//! The code is canonical: within a length, codes count up with the symbols, and each length
//! goes on where the one before ended. So the lengths are all there is to store.

use super::HpackError;

/// Length of each symbol's code in bits; symbol 256 is the end of the string.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6,
    6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7,
    7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24,
    24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22,
    22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20,
    19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27,
    27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const END: u16 = 256;
const LONGEST: usize = 30;

struct Code {
    /// Symbols by length, then by number.
    symbols: [u16; 257],
    /// By length: its first code, and how many codes and symbols come before.
    first: [u32; LONGEST + 1],
    count: [u16; LONGEST + 1],
    offset: [u16; LONGEST + 1],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self {
            symbols: [0; 257],
            first: [0; LONGEST + 1],
            count: [0; LONGEST + 1],
            offset: [0; LONGEST + 1],
        };
        let (mut length, mut placed, mut next) = (1, 0, 0_u32);
        while length <= LONGEST {
            next <<= 1;
            code.first[length] = next;
            code.offset[length] = placed;
            let mut symbol = 0;
            while symbol < 257 {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[placed as usize] = symbol as u16;
                    placed += 1;
                    next += 1;
                    code.count[length] += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        code
    }
}

/// Decodes a string. Its last byte is padded with ones, seven at most.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<u8>, HpackError> {
    let mut out = Vec::with_capacity(bytes.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let within = code.wrapping_sub(CODE.first[length]);
            if within < u32::from(CODE.count[length]) {
                let index = usize::from(CODE.offset[length]) + within as usize;
                match CODE.symbols[index] {
                    END => return Err(HpackError::Huffman),
                    symbol => out.push(symbol as u8),
                }
                (code, length) = (0, 0);
            } else if length == LONGEST {
                return Err(HpackError::Huffman);
            }
        }
    }
    // The padding is the beginning of the code of END: ones.
    if length > 7 || code != (1 << length) - 1 {
        return Err(HpackError::Huffman);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541, appendix C.4 and C.6.
    #[test]
    fn strings_of_the_rfc() {
        let cases: [(&[u8], &str); 5] = [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], "custom-key"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf], "custom-value"),
            (&[0x64, 0x02], "302"),
        ];
        for (bytes, text) in cases {
            assert_eq!(decode(bytes).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn faults() {
        // Padding of zeros; a whole byte of padding; the end symbol inside.
        for bytes in [&[0x00][..], &[0xff], &[0xff, 0xff, 0xff, 0xff], &[0x64, 0x02, 0xff]] {
            assert_eq!(decode(bytes), Err(HpackError::Huffman), "{bytes:x?}");
        }
    }
}
