//! Entries, templates and generations in the maps of the loaded programs.

use dataplane::PortId;

use super::Kernel;
use crate::Error;
use crate::layout::{Choice, ChoiceKey, FlowEntry, FlowKey, GUARD_PORTS, Template, TemplateKey};

impl Kernel {
    /// Sets the generation of a guard's place.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn set_generation(&self, guard: u32, generation: u32) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("write generation {guard}"), cause);
        self.generations.put(&guard, &generation).map_err(failed)
    }

    /// The guard's place of a port's generation.
    pub fn guard_of(port: PortId) -> u32 {
        GUARD_PORTS + u32::from(port.0)
    }

    /// Enters entries; how many got in before the map was full.
    pub fn put_flows(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> usize {
        self.flows.put_all(keys, entries)
    }

    /// Enters a template in place of any other.
    ///
    /// # Errors
    /// If the map is full.
    pub fn put_template(&self, key: &TemplateKey, template: &Template) -> Result<(), Error> {
        let failed = |cause| Error::new("enter a template", cause);
        self.templates.put(key, template).map_err(failed)
    }

    /// Removes a template.
    pub fn remove_template(&self, key: &TemplateKey) {
        // One that is not there is removed.
        let _ = self.templates.remove(key);
    }

    /// Enters a part of a service's choice in place of any other.
    ///
    /// # Errors
    /// If the map is full.
    pub fn put_choice(&self, key: &ChoiceKey, choice: &Choice) -> Result<(), Error> {
        let failed = |cause| Error::new("enter the backends of a service", cause);
        self.choices.put(key, choice).map_err(failed)
    }

    /// Removes a part of a service's choice.
    pub fn remove_choice(&self, key: &ChoiceKey) {
        // One that is not there is removed.
        let _ = self.choices.remove(key);
    }

    /// Number of templates.
    #[cfg(test)]
    pub(crate) fn templates(&self) -> usize {
        let mut count = 0;
        self.templates.for_each(|_, _| count += 1).unwrap();
        count
    }

    /// An entry as it is now.
    pub fn flow(&self, key: &FlowKey) -> Option<FlowEntry> {
        self.flows.get(key)
    }

    /// Removes an entry; as it was last, if there was one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove_flow(&self, key: &FlowKey) -> Result<Option<FlowEntry>, Error> {
        self.flows.take(key).map_err(|cause| Error::new("remove an entry", cause))
    }

    /// Calls `each` with all entries, as a picture taken while they change.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn for_each_flow(&self, each: impl FnMut(&FlowKey, &FlowEntry)) -> Result<(), Error> {
        self.flows.for_each(each).map_err(|cause| Error::new("read the entries", cause))
    }
}
