//! Two namespaces joined by a veth pair, and ports on its ends that a test drives by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::port::af_xdp::{AfXdpPort, PortOptions, Umem, UmemConfig};
use dataplane::port::{Lent, Port, PortGone};
use dataplane::{Frame, FreeList, Memory};
use testkit::Namespace;

/// Long enough for whatever is going to happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const FRAMES: u32 = 1024;

/// A switch's namespace and a pod's, `pod0` in the one leading to `eth0` in the other.
pub(crate) struct Pair {
    pub(crate) switch: Namespace,
    pub(crate) pod: Namespace,
}

impl Pair {
    pub(crate) fn new(label: &str) -> Self {
        let switch = Namespace::new(&format!("{label}-s"));
        let pod = Namespace::new(&format!("{label}-p"));
        let name = pod.name();
        switch.exec(words(&format!("ip link add pod0 type veth peer name eth0 netns {name}")));
        for (namespace, interface) in [(&switch, "pod0"), (&pod, "eth0")] {
            // No messages of the kernel's own between those of the test.
            let off = format!("net.ipv6.conf.{interface}.disable_ipv6=1");
            namespace.exec(["sysctl", "-qw", &off]);
            namespace.exec(words(&format!("ip link set {interface} up")));
        }
        Self { switch, pod }
    }
}

/// One port with a memory of its own.
pub(crate) struct End {
    umem: Umem,
    pub(crate) memory: Arc<Memory>,
    pub(crate) free: FreeList,
    port: Option<Box<AfXdpPort>>,
}

impl End {
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Self {
        namespace.enter(|| {
            let config = UmemConfig { frames: FRAMES, hugepages: false };
            let (umem, memory, frames) = Umem::create(&config).expect("a UMEM");
            let port = umem.open(interface, &PortOptions::default()).expect("a port");
            let mut end =
                Self { umem, memory, free: FreeList::new(frames), port: Some(Box::new(port)) };
            // The first call lends the kernel its frames.
            assert!(end.receive().is_empty());
            end
        })
    }

    /// Opens the port again.
    pub(crate) fn reopen(&mut self, namespace: &Namespace, interface: &str) {
        self.close();
        let port = namespace.enter(|| self.umem.open(interface, &PortOptions::default()));
        self.port = Some(Box::new(port.expect("a port")));
        assert!(self.receive().is_empty());
    }

    pub(crate) fn close(&mut self) {
        if let Some(port) = self.port.take() {
            port.close(&mut Lent { memory: &self.memory, free: &mut self.free });
        }
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        let mut frames = vec![frame];
        let mut lent = Lent { memory: &self.memory, free: &mut self.free };
        let port = self.port.as_mut().expect("an open port");
        port.send(&mut lent, &mut frames).expect("the interface is there");
        assert!(frames.is_empty(), "the port took no frame");
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let mut frame = self.free.take().expect("a free frame");
        assert!(self.memory.fill(&mut frame, bytes));
        self.send(frame);
    }

    pub(crate) fn try_receive(&mut self) -> Result<Vec<Frame>, PortGone> {
        let mut frames = Vec::new();
        let mut lent = Lent { memory: &self.memory, free: &mut self.free };
        let port = self.port.as_mut().expect("an open port");
        port.receive(&mut lent, 64, &mut frames).map(|()| frames)
    }

    pub(crate) fn receive(&mut self) -> Vec<Frame> {
        self.try_receive().expect("the interface is there")
    }

    /// The next frame that arrives.
    pub(crate) fn wait(&mut self) -> Frame {
        let deadline = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        while Instant::now() < deadline {
            let mut lent = Lent { memory: &self.memory, free: &mut self.free };
            let port = self.port.as_mut().expect("an open port");
            port.receive(&mut lent, 1, &mut frames).expect("the interface is there");
            if let Some(frame) = frames.pop() {
                return frame;
            }
        }
        panic!("no frame within {PATIENCE:?}");
    }

    /// The bytes of the next frame that arrives.
    pub(crate) fn wait_bytes(&mut self) -> Vec<u8> {
        let frame = self.wait();
        let bytes = self.memory.bytes(&frame).to_vec();
        self.free.put(frame);
        bytes
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
