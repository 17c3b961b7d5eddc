//! Removes debug information from a BPF object. The compiler makes BTF, which the kernel and libbpf read, only together with DWARF,
//! which neither reads and which is a third of the object.

use object::build::elf::{Builder, SectionData};

/// The object without its DWARF sections and their relocations; `.BTF` and `.BTF.ext` stay.
///
/// # Errors
/// If the bytes are no ELF object, in the words of the reader.
pub fn strip(object: &[u8]) -> Result<Vec<u8>, String> {
    let mut builder = Builder::read(object).map_err(|e| e.to_string())?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete |= name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    // Symbols of sections that went: relocations of DWARF were their only users.
    builder.delete_orphans();
    // The compiler keeps the names of sections and of symbols in one table; the writer wants one for each.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut bytes = Vec::new();
    builder.write(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};

    use super::*;

    /// A map, a global, a call between programs, and a relocation of each.
    const SOURCE: &str = r#"
        #define SEC(name) __attribute__((section(name), used))
        struct { int (*type)[1]; unsigned *key; unsigned *value; int (*max_entries)[4]; } table SEC(".maps");
        int limit = 7;
        static long (*const look_up)(void *, const void *) = (void *)1;
        static __attribute__((noinline)) int above(unsigned n) { return n > (unsigned)limit; }
        SEC("tc") int prog(unsigned *skb) { unsigned key = *skb; unsigned *v = look_up(&table, &key); return v ? above(*v) : 0; }
        char terms[] SEC("license") = "GPL";
    "#;

    fn compiled() -> Vec<u8> {
        let folder = std::env::temp_dir().join(format!("weir-bpf-strip-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (source, object) = (folder.join("x.c"), folder.join("x.o"));
        fs::write(&source, SOURCE).unwrap();
        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
        let status = Command::new(clang)
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-w", "-fno-addrsig", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status()
            .unwrap();
        assert!(status.success());
        let bytes = fs::read(&object).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        bytes
    }

    /// Name and bytes of a section, and its relocations: offset, and name of the symbol or of its section.
    type Section = (String, Vec<u8>, Vec<(u64, String)>);

    /// All sections but those of debug information and of the linker.
    fn contents(bytes: &[u8]) -> Vec<Section> {
        let file = object::File::parse(bytes).unwrap();
        let target = |target: RelocationTarget| {
            let RelocationTarget::Symbol(index) = target else { panic!("{target:?}") };
            let symbol = file.symbol_by_index(index).unwrap();
            match (symbol.name().unwrap(), symbol.section_index()) {
                ("", Some(section)) => file.section_by_index(section).unwrap().name().unwrap().to_owned(),
                (name, _) => name.to_owned(),
            }
        };
        let of_code = |name: &str| {
            let of_linker = [".symtab", ".strtab", ".shstrtab", ".llvm_addrsig", ""].contains(&name);
            !name.starts_with(".debug_") && !name.starts_with(".rel") && !of_linker
        };
        let sections = file.sections().filter(|s| of_code(s.name().unwrap()));
        sections
            .map(|s| {
                let relocations = s.relocations().map(|(at, r)| (at, target(r.target()))).collect();
                (s.name().unwrap().to_owned(), s.data().unwrap().to_vec(), relocations)
            })
            .collect()
    }

    #[test]
    fn debug_information_goes_and_everything_else_stays() {
        let whole = compiled();
        let light = strip(&whole).unwrap();
        assert!(light.len() * 10 < whole.len() * 8, "{} of {} bytes", light.len(), whole.len());
        let file = object::File::parse(&*light).unwrap();
        let left: Vec<&str> = file.sections().map(|s| s.name().unwrap()).collect();
        assert!(!left.iter().any(|name| name.contains(".debug_")), "{left:?}");
        let before = contents(&whole);
        for needed in [".BTF", ".BTF.ext", ".maps", "tc", "license", ".data"] {
            assert!(before.iter().any(|(name, ..)| name == needed), "the test's program lacks {needed}");
        }
        assert!(before.iter().any(|(name, _, relocations)| name == "tc" && relocations.len() >= 2));
        assert_eq!(before, contents(&light));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert!(strip(b"\x7fELF and nothing more").is_err());
    }
}
