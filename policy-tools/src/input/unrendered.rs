//! Folders whose objects another program makes: charts of Helm, and kustomizations.
//!
//! Templates of a chart are left out. The files of a kustomization are read as they stand; where its output differs
//! from them, a note names the command that renders it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

/// The names that kustomize looks for.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// The charts and kustomizations among files.
#[derive(Debug, Default)]
pub(super) struct Unrendered {
    /// Folders of charts.
    charts: BTreeSet<PathBuf>,
    /// By folder.
    kustomizations: BTreeMap<PathBuf, Kustomization>,
}

/// A folder that another program has to render.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    /// The file that identifies it.
    pub(crate) file: PathBuf,
    /// Message about the part of it that is read, and the command to run.
    pub(crate) note: String,
    pub(crate) folder: PathBuf,
    /// True if it is a chart of Helm; else a kustomization.
    pub(crate) is_chart: bool,
    /// The files and folders that its objects replace.
    pub(crate) sources: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct Kustomization {
    file: PathBuf,
    /// It changes or generates objects, or refers to missing files.
    changes: bool,
    /// The files and folders that it refers to.
    resources: Vec<PathBuf>,
}

impl Unrendered {
    /// Returns whether a file is part of a chart, which it notes.
    pub(super) fn is_of_chart(&mut self, file: &Path) -> bool {
        let chart = file.ancestors().skip(1).find(|folder| {
            let inside = file.strip_prefix(folder).unwrap_or(file);
            let first = inside.components().next().map(Component::as_os_str);
            let is_part = first.is_some_and(|first| {
                first == "templates" || first == "charts" || first == "Chart.yaml"
            });
            let is_values = inside.components().count() == 1
                && first.is_some_and(|first| first.to_string_lossy().starts_with("values"));
            (is_part || is_values) && folder.join("Chart.yaml").is_file()
        });
        let is_one = chart.is_some();
        self.charts.extend(chart.map(Path::to_owned));
        is_one
    }

    /// Returns whether a document is a kustomization, which it notes.
    pub(super) fn is_kustomization(&mut self, file: &Path, value: &Value) -> bool {
        let named = |name: &std::ffi::OsStr| KUSTOMIZATIONS.iter().any(|it| name == *it);
        let Some(folder) = file.parent().filter(|_| file.file_name().is_some_and(named)) else {
            return false;
        };
        let resources = ["resources", "bases", "components"].iter();
        let resources = resources.flat_map(|field| value[field].as_array()).flatten();
        let resources = resources.map(|it| normal(&folder.join(it.as_str().unwrap_or_default())));
        let resources: Vec<PathBuf> = resources.collect();
        let plain = ["apiVersion", "kind", "metadata", "resources", "bases"];
        let mut fields = value.as_object().into_iter().flat_map(serde_json::Map::keys);
        let changes = fields.any(|field| !plain.contains(&field.as_str()))
            || !resources.iter().all(|it| it.exists());
        let (file, folder) = (file.to_owned(), normal(folder));
        self.kustomizations.insert(folder, Kustomization { file, changes, resources });
        true
    }

    /// Returns the folders to render among the paths that were read.
    pub(super) fn folders(&self, paths: &[PathBuf]) -> Vec<Folder> {
        let all = self.charts.iter();
        // A chart in another one is rendered with it.
        let charts = all.filter(|it| !it.ancestors().skip(1).any(|it| self.charts.contains(it)));
        let charts = charts.map(|chart| {
            let shown = display(chart);
            let note = format!(
                "skipped: a Helm chart; use --render, or run `helm template {shown} > all.yaml` and read all.yaml"
            );
            let sources = BTreeSet::from([chart.clone()]);
            let (file, folder) = (chart.join("Chart.yaml"), chart.clone());
            Folder { file, note, folder, is_chart: true, sources }
        });
        let paths: Vec<PathBuf> = paths.iter().map(|path| normal(path)).collect();
        let resources = self.kustomizations.values().flat_map(|it| &it.resources);
        let resources: BTreeSet<&PathBuf> = resources.collect();
        let roots = self.kustomizations.iter().filter(|(folder, _)| !resources.contains(folder));
        let kustomizations =
            roots.filter(|(folder, _)| self.is_changed(folder, &paths, &mut BTreeSet::new()));
        let kustomizations = kustomizations.map(|(folder, root)| {
            let is_overlay = root.resources.iter().any(|it| self.kustomizations.contains_key(it));
            let cause = if is_overlay { "base and overlay are read as they stand" } else { "it is read as it stands" };
            let shown = display(folder);
            let note = format!(
                "a kustomization is not applied, {cause}; use --render, or run `kubectl kustomize {shown} > all.yaml` \
                 and read all.yaml"
            );
            let mut sources = BTreeSet::new();
            self.sources(folder, &mut sources);
            let (file, folder) = (root.file.clone(), folder.clone());
            Folder { file, note, folder, is_chart: false, sources }
        });
        charts.chain(kustomizations).collect()
    }

    /// Adds a kustomization and all that it is made of.
    fn sources(&self, folder: &Path, found: &mut BTreeSet<PathBuf>) {
        if found.insert(folder.to_owned()) {
            let resources = self.kustomizations.get(folder).map_or(&[][..], |it| &it.resources);
            resources.iter().for_each(|it| self.sources(it, found));
        }
    }

    /// Returns whether a kustomization's output differs from its files.
    fn is_changed<'a>(
        &'a self,
        folder: &'a Path,
        paths: &[PathBuf],
        visited: &mut BTreeSet<&'a Path>,
    ) -> bool {
        let is_read = |it: &Path| paths.iter().any(|path| it.starts_with(path));
        visited.insert(folder)
            && self.kustomizations.get(folder).is_some_and(|it| {
                it.changes
                    || it
                        .resources
                        .iter()
                        .any(|it| !is_read(it) || self.is_changed(it, paths, visited))
            })
    }
}

/// Removes `.` and `..` from a path by its text alone, without following links.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(parts.components().next_back(), Some(Component::Normal(_))) =>
            {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

/// A folder as a command takes it.
pub(super) fn display(folder: &Path) -> String {
    match folder.as_os_str().is_empty() {
        true => ".".into(),
        false => folder.display().to_string(),
    }
}
