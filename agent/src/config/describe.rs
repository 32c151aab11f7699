//! The options with the values in force, as `podgate show config` prints them.

use dataplane::switch::RxMode as SwitchRxMode;

use super::{Access, Config};

impl Config {
    /// Every option by name with the value in force.
    pub fn describe(&self) -> Vec<(String, String)> {
        let mut described = self.options.texts();
        for (name, value) in &mut described {
            // These are known only after the options are resolved.
            match name.as_str() {
                "kubeconfig" => *value = self.api_server.iter().map(Access::to_string).collect(),
                "umem-frames" => *value = self.umem_frames.to_string(),
                "journal-dir" => *value = self.journal_dir.display().to_string(),
                _ => {}
            }
        }
        described
    }
}

/// The name of a receive mode, as the option has it.
pub fn rx_mode_name(mode: SwitchRxMode) -> &'static str {
    match mode {
        SwitchRxMode::Polling => "polling",
        SwitchRxMode::Adaptive => "adaptive",
        SwitchRxMode::Interrupt => "interrupt",
    }
}
