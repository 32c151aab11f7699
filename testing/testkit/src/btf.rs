//! Type information of a kernel (BTF), made by hand.

/// BTF with these structures and the names of their members, which are numbers of 32 bits
/// (<https://docs.kernel.org/bpf/btf.html>).
pub fn btf(structs: &[(&str, &[&str])]) -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const STRUCT: u32 = 4 << 24;
    let mut texts = b"\0".to_vec();
    let mut text = |name: &str| {
        let at = texts.len() as u32;
        texts.extend(name.bytes().chain([0]));
        at
    };
    // Type 1: bits of the number, and where they begin.
    let mut types = vec![text("int"), INT, 4, 32];
    for (name, members) in structs {
        let count = members.len() as u32;
        types.extend([text(name), STRUCT | count, 4 * count]);
        for (position, member) in (0..).zip(*members) {
            types.extend([text(member), 1, 32 * position]);
        }
    }
    let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
    let sections = [0, types.len(), types.len(), texts.len()].map(|it| it as u32);
    let mut file = 0xeb9f_u16.to_ne_bytes().to_vec();
    // The version, no flags, and the length of this header.
    file.extend([1, 0]);
    file.extend(24_u32.to_ne_bytes());
    file.extend(sections.into_iter().flat_map(u32::to_ne_bytes));
    [file, types, texts].concat()
}
