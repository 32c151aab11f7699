//! Reads captures of either format, record by record.

use std::fs::File;
use std::io::{BufReader, Read};
use std::iter::FusedIterator;
use std::path::{Path, PathBuf};

use super::bytes::Source;
use super::pcap::Pcap;
use super::pcapng::{Pcapng, SECTION_HEADER};
use super::{Error, Fault, Record};

/// Gives the records of a capture in their order.
///
/// After an error nothing follows.
#[derive(Debug)]
pub struct Reader<R> {
    file: PathBuf,
    source: Source<R>,
    format: Format,
    /// Set once the end or an error has been met.
    finished: bool,
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    Pcapng(Box<Pcapng>),
}

impl Reader<BufReader<File>> {
    /// Opens the capture at `path`.
    ///
    /// # Errors
    /// If the file cannot be opened, or does not begin as a capture of Ethernet frames.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        match File::open(path) {
            Ok(file) => Self::new(path, BufReader::with_capacity(1 << 16, file)),
            Err(error) => {
                Err(Error { file: path.to_path_buf(), offset: 0, fault: Fault::Io(error) })
            }
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads a capture from `input`; errors will call it `file`.
    ///
    /// # Errors
    /// If the input does not begin as a capture of Ethernet frames.
    pub fn new(file: impl Into<PathBuf>, input: R) -> Result<Self, Error> {
        let mut source = Source::new(input);
        match start(&mut source) {
            Ok(format) => Ok(Self { file: file.into(), source, format, finished: false }),
            Err(fault) => Err(Error { file: file.into(), offset: 0, fault }),
        }
    }
}

impl<R> Reader<R> {
    /// Packets of pcapng's interfaces whose link type is not understood, so far: they are no records.
    pub fn passed_over(&self) -> u64 {
        match &self.format {
            Format::Pcap(_) => 0,
            Format::Pcapng(pcapng) => pcapng.passed_over,
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let mut offset = self.source.offset;
        let record = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.source),
            Format::Pcapng(pcapng) => pcapng.next(&mut self.source, &mut offset),
        };
        self.finished = !matches!(record, Ok(Some(_)));
        record.map_err(|fault| Error { file: self.file.clone(), offset, fault }).transpose()
    }
}

impl<R: Read> FusedIterator for Reader<R> {}

fn start<R: Read>(source: &mut Source<R>) -> Result<Format, Fault> {
    let mut magic = [0; 4];
    match source.fill(&mut magic, "") {
        Ok(true) => {}
        Ok(false) => return Err(Fault::Empty),
        Err(Fault::Cut { .. }) => return Err(Fault::NotACapture),
        Err(fault) => return Err(fault),
    }
    if magic == SECTION_HEADER {
        return Pcapng::start(source).map(Box::new).map(Format::Pcapng);
    }
    let mut pcap = Pcap::announced_by(magic).ok_or(Fault::NotACapture)?;
    pcap.header(source)?;
    Ok(Format::Pcap(pcap))
}
