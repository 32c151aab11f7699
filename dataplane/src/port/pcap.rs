//! Captures as ports: frames come out of one and go into another.

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::{Buffers, Port, PortGone};
use crate::Frame;
use crate::capture::{Direction, Reader, Writer};

/// A port that receives the packets of a capture, in its order and as fast as they are taken, and
/// writes what it sends to another.
///
/// Captures that are cut short, and packets longer than all free frames, end the port with the
/// reason. When the capture is at its end, the port stays and sends.
pub struct PcapPort<R, W> {
    name: String,
    /// `None` when it is at its end.
    input: Option<Reader<R>>,
    output: Option<Output<W>>,
}

/// A capture that several ports write to.
pub type Output<W> = Arc<Mutex<Writer<W>>>;

impl<R: BufRead + Send, W: Write + Send> PcapPort<R, W> {
    /// A port called `name`; without an output, what it sends is dropped.
    pub fn new(name: &str, input: Option<Reader<R>>, output: Option<Output<W>>) -> Self {
        Self { name: name.to_owned(), input, output }
    }
}

impl<R: BufRead + Send, W: Write + Send> Port for PcapPort<R, W> {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let mut count = 0;
        while count < most
            && !buffers.free.is_empty()
            && let Some(input) = &mut self.input
        {
            match input.next() {
                None => self.input = None,
                Some(Err(error)) => return Err(PortGone(error.to_string())),
                Some(Ok(record)) => {
                    let Some(frame) = buffers.filled(&record.data) else {
                        let (length, offset) = (record.data.len(), record.offset);
                        return Err(PortGone(format!(
                            "no frames for the packet of {length} bytes at offset {offset}"
                        )));
                    };
                    frames.push(frame);
                    count += 1;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = time.unwrap_or(Duration::ZERO);
        let mut bytes = Vec::new();
        for frame in frames.drain(..) {
            if let Some(output) = &self.output {
                bytes.clear();
                buffers.memory.append_to(&frame, &mut bytes, usize::MAX);
                let mut writer = output.lock().unwrap_or_else(PoisonError::into_inner);
                let (name, length) = (Some(&*self.name), bytes.len() as u32);
                let written = writer.write_directed(name, time, &bytes, length, Direction::Out);
                if let Err(error) = written {
                    buffers.free.put(frame);
                    return Err(PortGone(format!("write the capture of {}: {error}", self.name)));
                }
            }
            buffers.free.put(frame);
        }
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FreeList, Memory};

    fn capture(packets: &[&[u8]]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for packet in packets {
            writer.write(None, Duration::ZERO, packet, packet.len() as u32).unwrap();
        }
        writer.finish().unwrap()
    }

    fn port<'a>(bytes: &'a [u8], output: Option<&Output<Vec<u8>>>) -> PcapPort<&'a [u8], Vec<u8>> {
        let reader = Reader::new("test.pcapng", bytes).unwrap();
        PcapPort::new("default/a", Some(reader), output.cloned())
    }

    #[test]
    fn a_capture_passes_through() {
        let (memory, frames) = Memory::heap(2048, 4);
        let mut free = FreeList::new(&memory, frames);
        let mut buffers = Buffers { memory: &memory, free: &mut free };
        let packets: Vec<Vec<u8>> = (0..10).map(|n| vec![n; 60]).collect();
        let bytes = capture(&packets.iter().map(|it| &it[..]).collect::<Vec<_>>());
        let output = Arc::new(Mutex::new(Writer::new(Vec::new()).unwrap()));
        let mut port = port(&bytes, Some(&output));
        for _ in 0..5 {
            let mut frames = Vec::new();
            port.receive(&mut buffers, 3, &mut frames).unwrap();
            assert!(frames.len() <= 3);
            port.send(&mut buffers, &mut frames).unwrap();
        }
        drop(port);
        let written = Arc::into_inner(output).unwrap().into_inner().unwrap().finish().unwrap();
        let records = Reader::new("written", &written[..]).unwrap().map(Result::unwrap);
        let seen: Vec<_> = records.map(|it| (it.interface.unwrap(), it.data)).collect();
        let expected: Vec<_> = packets.into_iter().map(|it| ("default/a".into(), it)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn damage_ends_the_port_with_its_reason() {
        let (memory, frames) = Memory::heap(512, 4);
        let mut free = FreeList::new(&memory, frames);
        let mut buffers = Buffers { memory: &memory, free: &mut free };
        let bytes = capture(&[&[1; 60], &[2; 60]]);
        let mut frames = Vec::new();
        let gone = port(&bytes[..bytes.len() - 9], None).receive(&mut buffers, 9, &mut frames);
        assert!(gone.unwrap_err().0.contains("test.pcapng"));
        assert_eq!(frames.len(), 1);

        let too_long = capture(&[&[1; 1500]]);
        let gone = port(&too_long, None).receive(&mut buffers, 9, &mut frames).unwrap_err();
        assert!(gone.0.contains("no frames for the packet of 1500 bytes at offset"), "{gone}");
    }
}
