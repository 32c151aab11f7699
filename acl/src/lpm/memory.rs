//! Memory whose versions share what did not change, in one flat array.
//!
//! ```text
//! Pool     the one writer: hands out pieces of lines, and takes them back
//! Version  what readers hold: keeps the memory as of one moment
//! View     the memory as a version's lookups see it: one array of words
//! ```
//!
//! The writer changes nothing that a version may reference: it writes a copy, *retires* the old
//! piece, and publishes. A retired piece is used again when the last version that saw it is gone:
//! each knows when it was born, and waits with the latest version that sees it; when that one goes,
//! it moves on to the one before, or is free. So a version that is held for long keeps what it
//! shows, and no more. Reading takes no lock, no count and no directory.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Words of 32 bits in a cache line.
pub(super) const LINE: u32 = 16;

#[derive(Debug)]
#[repr(align(64))]
struct Line {
    _words: [AtomicU32; LINE as usize],
}

/// Sizes of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// One line.
    Line,
    /// Sixteen lines: 256 words.
    Block,
}

impl Size {
    const fn lines(self) -> u32 {
        match self {
            Self::Line => 1,
            Self::Block => 16,
        }
    }
}

/// Keeps the place of a word below 2^31. Forty million networks need no more.
const MOST_LINES: u32 = 1 << 27;

/// Lines; their number is a power of two.
#[derive(Debug)]
struct Memory(Box<[Line]>);

/// A hold on the memory as it was at one moment.
#[derive(Debug)]
pub(super) struct Version {
    memory: Arc<Memory>,
    used: u32,
    gone: Arc<AtomicBool>,
}

/// The words of a memory.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    words: &'a [AtomicU32],
}

/// The writer's side of a memory.
#[derive(Debug)]
pub(super) struct Pool {
    memory: Arc<Memory>,
    /// Lines ever handed out.
    used: u32,
    free_lines: Vec<u32>,
    free_blocks: Vec<u32>,
    /// By line: number of the version that the piece there was handed out for.
    born: Vec<u64>,
    /// Versions that may still be held, oldest first.
    held: Vec<Held>,
    /// Number of the version in the making.
    number: u64,
    /// Number of held versions from which on those that are gone are sought.
    look_at: usize,
}

#[derive(Debug)]
struct Held {
    number: u64,
    gone: Arc<AtomicBool>,
    /// Pieces that this version sees and later ones do not.
    retired: Vec<(u32, Size)>,
}

impl Memory {
    fn new(lines: usize) -> Self {
        // SAFETY: zeros are valid numbers. What is not touched takes no memory this way.
        Self(unsafe { Box::new_zeroed_slice(lines.next_power_of_two()).assume_init() })
    }

    fn view(&self) -> View<'_> {
        let words = self.0.as_ptr().cast();
        // SAFETY: a line is nothing but its words; atomic, so the writer may be at work
        // elsewhere in the memory.
        View { words: unsafe { std::slice::from_raw_parts(words, self.0.len() * LINE as usize) } }
    }
}

impl<'a> View<'a> {
    /// The word at `at`, counted around the end.
    #[inline(always)]
    pub(super) fn word(self, at: u32) -> u32 {
        let at = at as usize & (self.words.len() - 1);
        // SAFETY: the mask is a power of two less one, as their number is one.
        unsafe { self.words.get_unchecked(at) }.load(Ordering::Relaxed)
    }

    /// The first words of the line that `at` is in, counted around the end; a line that a version
    /// references, which is never written.
    #[inline(always)]
    pub(super) fn line<const N: usize>(self, at: u32) -> &'a [u32; N] {
        const { assert!(N <= LINE as usize) };
        let at = at as usize & (self.words.len() - 1) & !(LINE as usize - 1);
        // SAFETY: as above, and `at` is a multiple of a line's words, of which there are more than
        // `N`. They are not written during the copy.
        unsafe { &*self.words.as_ptr().add(at).cast() }
    }

    /// Where the words begin, and the place of the last, a power of two less one below 2^31.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn words(self) -> (*const i32, u32) {
        (self.words.as_ptr().cast(), self.words.len() as u32 - 1)
    }

    /// The words of the block at `at`, for the writer.
    pub(super) fn block(self, at: u32) -> [u32; 256] {
        let words = &self.words[at as usize..][..256];
        // SAFETY: so many words are there, and only the writer calls this, which alone writes any.
        unsafe { words.as_ptr().cast::<[u32; 256]>().read() }
    }

    fn set(self, at: u32, word: u32) {
        self.words[at as usize].store(word, Ordering::Relaxed);
    }
}

impl Version {
    #[inline(always)]
    pub(super) fn view(&self) -> View<'_> {
        self.memory.view()
    }

    pub(super) fn bytes(&self) -> usize {
        self.used as usize * size_of::<Line>()
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        Self {
            memory: Arc::new(Memory::new(64)),
            used: 0,
            free_lines: Vec::new(),
            free_blocks: Vec::new(),
            born: Vec::new(),
            held: Vec::new(),
            number: 0,
            look_at: 8,
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        self.memory.view()
    }

    /// A new piece with `words`, which fill it; the place of its first word.
    pub(super) fn put(&mut self, size: Size, words: &[u32]) -> u32 {
        let free = match size {
            Size::Line => &mut self.free_lines,
            Size::Block => &mut self.free_blocks,
        };
        let line = free.pop().unwrap_or_else(|| self.fresh(size));
        self.born[line as usize] = self.number;
        let room = &self.memory.view().words[(line * LINE) as usize..][..words.len()];
        // SAFETY: `room` is as long as `words`, and atomic, so it may be written; no version
        // leads there yet or any more, so no reader sees it.
        unsafe {
            let to = room.as_ptr().cast::<u32>().cast_mut();
            std::ptr::copy_nonoverlapping(words.as_ptr(), to, words.len());
        }
        line * LINE
    }

    fn fresh(&mut self, size: Size) -> u32 {
        let line = self.used;
        self.used += size.lines();
        self.born.resize(self.used as usize, 0);
        if self.used as usize > self.memory.0.len() {
            assert!(self.used <= MOST_LINES, "8 GiB of networks: refused before they get here");
            let larger = Memory::new(self.used as usize);
            let (from, to) = (self.memory.view(), larger.view());
            for (to, from) in to.words.iter().zip(&from.words[..(line * LINE) as usize]) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            self.memory = Arc::new(larger);
            // Versions read the old memory; none refers to the new one yet.
            for held in std::mem::take(&mut self.held) {
                held.retired.into_iter().for_each(|(line, size)| self.release(line, size));
            }
        }
        line
    }

    /// Sets a word of a piece that [is private](Self::is_private).
    pub(super) fn set(&mut self, at: u32, word: u32) {
        self.memory.view().set(at, word);
    }

    /// Whether no version references the piece at `at`.
    pub(super) fn is_private(&self, at: u32) -> bool {
        self.held.last().is_none_or(|held| held.number < self.born[(at / LINE) as usize])
    }

    /// Reclaims a piece that the version under construction no longer references.
    pub(super) fn retire(&mut self, at: u32, size: Size) {
        let line = at / LINE;
        if self.is_private(at) {
            self.release(line, size);
        } else if let Some(held) = self.held.last_mut() {
            held.retired.push((line, size));
        }
    }

    fn release(&mut self, line: u32, size: Size) {
        match size {
            Size::Line => self.free_lines.push(line),
            Size::Block => self.free_blocks.push(line),
        }
    }

    /// Holds the memory as it is now.
    pub(super) fn publish(&mut self) -> Version {
        if self.held.len() >= self.look_at {
            self.look();
        }
        let gone = Arc::new(AtomicBool::new(false));
        let held = Held { number: self.number, gone: Arc::clone(&gone), retired: Vec::new() };
        self.held.push(held);
        self.number += 1;
        Version { memory: Arc::clone(&self.memory), used: self.used, gone }
    }

    /// Looks which versions are gone.
    fn look(&mut self) {
        for at in (0..self.held.len()).rev() {
            // Acquires what the version's readers did before it was dropped: read.
            if !self.held[at].gone.load(Ordering::Acquire) {
                continue;
            }
            for (line, size) in self.held.remove(at).retired {
                match at.checked_sub(1).map(|before| &mut self.held[before]) {
                    Some(before) if self.born[line as usize] <= before.number => {
                        before.retired.push((line, size));
                    }
                    _ => self.release(line, size),
                }
            }
        }
        self.look_at = 2 * self.held.len() + 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the number of each version into one block, as a tree of one node would.
    #[test]
    fn versions_keep_what_they_show_and_no_more() {
        let mut pool = Pool::new();
        let mut root = pool.put(Size::Block, &[0; 256]);
        let mut versions: Vec<(Version, u32, u32)> = Vec::new();
        let mut most = 0;
        for number in 1..2000_u32 {
            match pool.is_private(root) {
                true => pool.set(root + 7, number),
                false => {
                    pool.retire(root, Size::Block);
                    root = pool.put(Size::Block, &[number; 256]);
                }
            }
            versions.push((pool.publish(), root, number));
            if versions.len() > 5 {
                // The first is held all the while.
                versions.remove(1 + number as usize % 4);
            }
            for (version, root, number) in &versions {
                assert_eq!(version.view().word(root + 7), *number);
            }
            most = most.max(pool.used);
        }
        assert!(most <= 40 * 16, "{most} lines for six versions of sixteen");
        versions.clear();
        pool.look();
        assert!(pool.held.is_empty() && pool.is_private(root));
        assert_eq!(pool.free_blocks.len() as u32 + 1, pool.used / 16);
    }

    #[test]
    fn growing_leaves_versions_alone() {
        let mut pool = Pool::new();
        let first = pool.put(Size::Line, &[1; 16]);
        let version = pool.publish();
        let mut last = first;
        for number in 2..1000 {
            last = pool.put(Size::Line, &[number; 16]);
        }
        pool.set(first, 77);
        assert_eq!((version.view().word(first), pool.view().word(first)), (1, 77));
        assert_eq!(pool.view().word(last), 999);
    }
}
