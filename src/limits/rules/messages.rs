//! The messages about files of limits and resources of a control plane. Those about options of
//! algorithms are in `core/algorithm/messages.rs`.
//!
//! A code is stable; sentences are not. A remedy never changes the meaning of a file by itself.

use super::place::Place;
use crate::core::algorithm::messages as option_messages;
use crate::core::message::{Code, Message, messages};

messages! {
    more_problems(count, of) => "{count} more problems in this {of} are not shown",
        "correct these first";
    too_much_memory(mib) => "the limits up to here need more than the {mib} MiB that MEMORY_LIMIT \
        leaves them",
        "raise MEMORY_LIMIT, an eighth of which is for limits and their files, or write fewer; a \
        row of a table takes a tenth of a limit";

    // The folder of limits, and the arguments of `weir check`.
    overlay_of_many_files() => "an overlay is one file", "name the file";
    unreadable_revision(error) => "it is no path, and git does not read it: {error}",
        "write a file, a folder, or a revision that has PATHS";
    path_and_revision(revision) => "it is a path, and a revision of git as well",
        "write ./{revision}, or a full name such as refs/heads/main";
    not_a_folder_or_file() => "neither a folder nor a file",
        "set the path to the folder that holds the limits, or to one file";
    several_files() => "it is a folder with several files", "write the path of one file";
    no_files() => "there are no files of limits",
        "add a configuration file; to limit nothing, one with a domain and no descriptors";
    changing_files() => "the files keep changing while weir reads them",
        "wait until they are written, and try again";
    too_many_files(most) => "more than {most} files and folders",
        "set the path to a folder that holds only the limits";
    folders_too_deep(most) => "folders are nested more than {most} deep",
        "put the files into fewer folders";
    unreadable_file(error, remedy) => "cannot be read: {error}", "{remedy}";
    pipe_too_large() => "too large for a pipe", "write it into a file";
    file_above_maximum(mib) => "larger than {mib} MiB", "split it into several files";
    table_above_maximum(mib) => "larger than {mib} MiB",
        "write fewer rows, or leave out columns that a plan can set";
    files_above_maximum(mib) => "its files are larger than {mib} MiB in total",
        "set the path to a folder that holds only the limits";
    tables_above_maximum(mib) => "its tables are larger than {mib} MiB in total",
        "write fewer rows, or leave out columns that a plan can set";
    link_without_target() => "the link points to a file that does not exist",
        "repair or remove the link";
    link_out_of_folder(target) => "the link points out of the folder, to {target}",
        "copy the file here, or link the whole folder";
    link_to_folder_above() => "the link points back to a folder that contains it",
        "remove the link";

    // Files.
    file_is_utf16() => "the file is UTF-16", "save it as UTF-8";
    file_is_workbook() => "the file is a workbook, not text", "export it as CSV";
    file_not_utf8() => "the file is not UTF-8 from here on", "save it as UTF-8";
    file_too_large(size, largest) => "the file has {size} bytes, more than the maximum of \
        {largest}",
        "split it into several files, with MERGE_DOMAIN_CONFIG where they share a domain";
    second_document() => "only the first document of a file is read, and the one that begins here \
        is ignored", "move it to a file of its own";
    too_many_brackets(what, most) => "{what} has more than {most} commas and opening brackets",
        "write lists and maps on lines of their own, or split the file";
    too_many_nodes(most) => "the file has more than {most} values", "split it into several files";
    too_many_aliases(most) => "the aliases of this file expand to more than {most} nodes",
        "use fewer aliases, or split the file";
    nested_too_deep(most) => "lists and maps are nested more than {most} levels deep",
        "write the limits with fewer levels";
    alias_of_itself() => "the alias is inside the node that it refers to",
        "write the node out, or move the anchor '&' to a node that is complete";
    repeated_key(name, first) => "the key {name} occurs twice in one map, and the last one counts",
        "remove one of them; the first is in line {first}";
    merge_of_no_map(found) => "the merge key '<<' takes a map or a list of maps, not {found}",
        "name a map by its alias, as in '<<: *defaults'; a key that is called '<<' needs quotes";
    yaml_anchor() => "the alias names an anchor that is not defined",
        "define it with '&' before this alias; text that begins with '*' needs quotes";
    yaml_tab() => "a tab, where only spaces are allowed", "indent with spaces";
    yaml_quotes() => "the quoted text that begins here has no end", "close the quotes";
    yaml_open_quote() => "the quote that opens here is not closed", "close the quote";
    yaml_indentation() => "this does not fit the text before it",
        "check the indentation here and in the lines before; text with ': ' needs quotes";
    yaml_brackets() => "a list or map in brackets is not complete",
        "check brackets and commas here and before";
    yaml_first_character() => "text begins with a character that has a meaning in YAML",
        "put the text in quotes, as in value: \"*\"";
    yaml_escape() => "the quoted text contains a '\\' that YAML does not know",
        "write it as '\\\\', or use single quotes";
    yaml_other(error) => "this is not YAML: {error}",
        "check indentation, quotes and brackets here and in the lines before";

    // Metadata.
    metadata_not_a_map(found) => "'metadata' is {found}, not a map",
        "write keys and values below it";
    metadata_not_finite(number) => "{number} cannot be returned as metadata: JSON has no such \
        number", "write \"{number}\" for the text, or a finite number";
    metadata_is_binary() => "binary data cannot be returned as metadata",
        "write it as text, without !!binary";
    metadata_key_not_text(found) => "a key of metadata is {found}", "write it as text";

    // Regular expressions.
    regex_too_long(most) => "the regular expression has more than {most} bytes",
        "write a shorter one, or a set of values";
    no_regex(error) => "it is no regular expression: {error}",
        "correct it; the syntax is that of RE2";
    regex_too_large(most) => "the table of the regular expression needs more than {most} bytes",
        "repeat less often, or write [0-9A-Za-z_] for \\w";
    regex_word_boundary() => "a word boundary of all letters of Unicode has no table",
        "write (?-u:\\b) for ASCII letters";

    file_is_empty() => "the file is empty", "write 'domain: ' and the domain that Envoy sends";
    file_of_comments() => "the file holds only comments",
        "write 'domain: ' and the domain that Envoy sends";
    file_of_other_keys(first) => "this is no file of limits: it has {first} and others, and \
        neither 'domain' nor 'descriptors'",
        "limits are in files that begin with 'domain:' and 'descriptors:'";
    manifest(kind) => "this is a manifest of Kubernetes, of kind {kind}, and no file of limits",
        "limits are in files that begin with 'domain:' and 'descriptors:', which a ConfigMap has \
        below 'data'";
    manifest_with_data(kind) as manifest => "this is a manifest of Kubernetes, of kind {kind}, and \
        no file of limits", "write each text below 'data' into a file of its own";

    // Domains.
    no_domain() => "the file has no domain", "write 'domain: ' and the domain that Envoy sends";
    repeated_domain(name, first) => "the domain {name} is already defined, in {first}",
        "merge the files, or set MERGE_DOMAIN_CONFIG=true, with which files may share a domain";
    differs_in_domain(key, first) => "'{key}' differs from the one in {first}, for the same domain",
        "write the same in both files, or remove one of them";
    domain_without_limits(name) => "the domain {name} has no limits: only limits that requests \
        bring along are enforced in it", "add a descriptor with 'rate_limit', or remove the file";

    // Plans.
    plans_not_a_map(found) => "'plans' is {found}, not a map",
        "write the name of each plan below it, and below that 'unit: ' and 'requests_per_unit: '";
    too_many_plans(most) => "the domain has more than {most} plans",
        "write numbers of single values in the rows of a table";
    wrong_plan_name(longest) => "this cannot be the name of a plan",
        "write 1 to {longest} bytes without control characters";
    repeated_plan(name, first) => "the plan {name} is already defined, in {first}",
        "remove one of them";
    unknown_plan(name) => "there is no plan {name} in this domain",
        "write it below 'plans:', or the name of a plan that is there";
    plan_without_plans(name) as unknown_plan => "there is no plan {name} in this domain",
        "write it below 'plans:' at the root of the file";

    // Names in replaces.
    unknown_replaced(domain, name) => "no limit of the domain {domain} has the name {name}",
        "give a limit this name, or remove the entry";

    // Overlays.
    overlay_is_empty() => "the file has no entries", "write 'domains:', or remove the file";
    too_many_entries(most) => "the file has more than {most} domains and descriptors",
        "name several at once by '*'";
    unused_entry(kind) => "no {kind} of the control plane matches this entry",
        "correct its names, keys and values, or remove it";
    entry_without_domain() => "the entry has no domain",
        "write 'domain: ' and a domain, or a pattern with '*'";
    entry_without_key() => "the descriptor has no key",
        "write 'key: ' and a key, or a pattern with '*'";
    brace_without_other() => "a brace has no other half",
        "write 'algorithm: ' and its options, separated by commas";
    key_without_value(key) => "'{key}' has no value", "write a value after '{key}: '";

    // Resources of a control plane.
    resource_without_domain() => "the resource has no domain", "send the domain that Envoy sends";
    repeated_resource(domain, first) => "the domain '{domain}' is already defined, in resource \
        {first}",
        "send one resource for each domain, or set MERGE_DOMAIN_CONFIG=true, with which resources \
        may share a domain";
    too_many_levels(most) => "there are more than {most} levels of descriptors",
        "send a tree with fewer levels";
    metadata_too_deep(most) => "the metadata has more than {most} levels",
        "send metadata with fewer levels";
    second_limit(counts, other, resource) => "the descriptor has more than one limit: {counts} \
        counts, and {other} of {resource} is ignored",
        "send one limit for each path of keys and values";
    options_in_metadata() => "'weir' in the metadata has no effect",
        "write its options into the file that CONFIG_GRPC_XDS_OVERLAY_FILE names";

    unusable_resource(error) => "{error}",
        "correct it in the control plane; until then its last good version stays in force, if \
        there is one";

    // Files of values.
    value_too_long(most) => "the value has more than {most} bytes", "write a shorter one";
    value_not_utf8() => "the value is not UTF-8", "write the file in UTF-8";
    value_is_formula() => "the value is a formula of a spreadsheet, and requests match only with \
        it", "remove the formula if it is not meant";
    value_with_invisible_character() => "the value has an invisible character, and requests match \
        only with it", "remove the character if it is not meant";
    value_with_blank() => "the value begins or ends with a blank, and requests match only with it",
        "remove the blank if it is not meant";

    // Keys of maps.
    not_a_map(place, found, remedy) => "expected a map {place}, found {found}", "{remedy}";
    misplaced_key(key, place, places) => "'{key}' has no meaning {place}", "it belongs {places}";
    ignored_key(key, place, places) => "'{key}' has no meaning {place} and is ignored",
        "it belongs {places}";
    amount_next_to_key(key) => "'{key}' is next to 'key' and is ignored",
        "indent it below 'rate_limit'";
    key_without_name(found) as key_not_text => "a key is {found}, not text",
        "write the name of a key; check the indentation";
    key_not_text(key, found) => "the key {key} is {found}, not text", "write the name of a key";
    unknown_key(found, keys) => "unknown key {found}", "remove it, or write one of {keys}";
    unknown_ignored_key(found) as unknown_key => "unknown key {found}", "remove it";
    key_with_unit(found, near, unit) as unknown_key => "unknown key {found}",
        "write '{near}: ' and the number, and 'unit: {unit}'";
    key_of_whole_limit(found) as unknown_key => "unknown key {found}",
        "write it in 'rate_limit': it is the same for all plans and rows";
    key_of_tables(found) as unknown_key => "unknown key {found}",
        "remove it: tables and plans are written in files of limits, and a control plane has none";
    ignored_item(found) => "expected a map in this list, found {found}", "remove it";
    domains_no_list(found) as not_a_list => "'domains' is {found}, not a list",
        "begin each entry below it with '- domain: '";
    overlay_descriptors_no_list(found) as not_a_list => "'descriptors' is {found}, not a list",
        "begin each entry below it with '- key: '";
    descriptors_no_list(found) as not_a_list => "'descriptors' is {found}, not a list",
        "begin each descriptor below it with '- key: '";
    replaces_no_list(found) as not_a_list => "'replaces' is {found}, not a list",
        "write '- name: ' and the name of a limit below it";
    values_no_list(found) as not_a_list => "'values' is {found}, not a list",
        "write 'values: [one, two]'";

    // Types of values.
    not_text(key, found) => "'{key}' is {found}, not text", "write text after '{key}: '";
    number_without_meaning(shown, kind, text) => "{shown} is read as {kind}, which has no meaning \
        here", "write \"{text}\" if it is text";
    name_of_many_lines(name) => "the name {name} has a line break or another control character",
        "write one line of text";
    unknown_value(noun, text, names) => "unknown {noun}: {text}", "write one of {names}";
    unknown_zone(text) as unknown_value => "unknown time zone: {text}",
        "write a name of the IANA database, such as Europe/Berlin";
    value_in_quotes(key, found, written) => "'{key}' is {found} in quotes, which is text",
        "write '{written}' without quotes";
    not_a_bool(key, found, is_true, is_false) => "'{key}' is {found}, not true or false",
        "write '{is_true}' or '{is_false}'";
    octal_number(text, number, written) => "{text} has a leading zero and is read as octal: it is \
        {number}", "write '{written}' if that is meant, or remove the zero";
    negative_number(key, found) => "'{key}' is {found}, which is negative",
        "write a number from 0 on, or remove it";
    negative_requests(found) as negative_number => "'requests_per_unit' is {found}, which is \
        negative", "write a number from 0 on, or 'unlimited' in rate_limit for no limit";
    negative_multiplier(found) as negative_number => "'unit_multiplier' is {found}, which is \
        negative", "write 1 or more, or remove it";
    number_too_large(key, found, most, power) => "'{key}' is {found}, which is too large",
        "write at most {most} ({power})";
    rate_too_large(key, found, most, power) as number_too_large => "'{key}' is {found}, which is \
        too large", "write at most {most} ({power}), or a longer unit";
    number_with_fraction(key, found, most) => "'{key}' is {found}, which is read as a \
        floating-point number", "write a number from 0 to {most} without fraction or exponent";
    not_a_number(key, found, written) => "'{key}' is {found}, not a number",
        "write a whole number, such as '{written}'";
    no_unit(names) => "the rate_limit has no unit", "write one of {names}";
    unit_of_number(text, unit, multiplier) as unknown_value => "unknown unit: {text}",
        "write {unit}, and '{multiplier}' next to it";
    multiplier_is_zero() => "'unit_multiplier' is 0, which makes the window zero",
        "write 1 or more, or remove it";
    window_too_long(multiplier, unit) => "a window of {multiplier} {unit}s is longer than 100 \
        years", "write a smaller 'unit_multiplier'";
    wrong_date(key, text, what, remedy) => "'{key}' is {text}, {what}", "{remedy}";
    wrong_duration(key, found, what, remedy) => "'{key}' is {found}, {what}", "{remedy}";
    duration_without_unit(key, text, written) as wrong_duration => "'{key}' is {text}, which has \
        no unit", "write '{written}' for seconds, or another unit: h, m, s, ms, us";
    duration_too_long(key, text) as wrong_duration => "'{key}' is {text}, which is longer than 200 \
        years", "write a shorter duration";
    reservations_without_ttl() => "'reservations' has no 'ttl', after which a reservation expires",
        "write the time that the longest request takes, such as 'ttl: 60s'";
    not_a_percentage(key, text) => "'{key}' is {text}, not 1% to 100%",
        "write whole per cents, such as 50%";
    shares_not_a_map(found) as not_a_map => "'region_shares' is {found}, not a map",
        "write the share of each region by its name: '{{eu: 40%, us: 60%}}'";
    wrong_share(name, text, remedy) => "the share of {name} is {text}", "{remedy}";
    shares_too_large(sum) => "the shares of 'region_shares' are {sum} together",
        "lower them, or the regions admit more than the limit";
    wrong_threshold(text) => "'notify' has {text}, not a whole percentage above the one before it",
        "write at most 8 from 1% to 100%, such as [50%, 80%, 100%]";

    // Descriptors.
    descriptor_is_empty() => "a descriptor is empty", "write 'key: ' after the '-', or remove it";
    no_key() => "the descriptor has no key", "write 'key: ' and the key that Envoy sends";
    paths_too_long(most) => "the keys and values above all limits have more than {most} bytes in \
        total", "write shorter keys and values, or fewer limits";
    share_threshold_with_prefix() => "'share_threshold' is next to 'prefix', which has a counter \
        for each network", "write one of them";
    share_threshold_of_one_value() => "'share_threshold' needs a '*' in the key or the value, or \
        'match'", "write a pattern, such as value: \"*\", or remove 'share_threshold'";
    metadata_too_large(bytes, most) => "the metadata has {bytes} bytes as answers carry it",
        "write at most {most} bytes";
    key_without_limit(key) => "'{key}' has no effect in a descriptor without 'rate_limit'",
        "move it to the descriptor with the 'rate_limit'";
    rate_limit_is_empty() => "'rate_limit' is empty: this descriptor has no limit",
        "indent 'unit' and 'requests_per_unit' below it, or remove it";
    no_requests() => "'requests_per_unit' is missing, which means 0: every request is refused",
        "write 'requests_per_unit: ' and a number, even if it is 0";
    store_failure_in_shadow_mode() => "'on_store_failure' has no effect on a limit in shadow mode, \
        which never refuses", "remove 'on_store_failure', or remove 'shadow_mode'";
    replaced_is_empty() => "an entry of replaces is empty",
        "write '- name: ' and the name of a limit, or remove it";
    replaced_without_name() => "an entry of replaces has no name",
        "write the name of a limit, or remove the entry";
    limit_replaces_itself(name) => "the limit {name} replaces itself",
        "name another limit, or remove the entry";
    block_as_text(value) => "{value} looks like a block of addresses, but is compared as text: no \
        address in it matches",
        "write 'match: cidr' next to it, or let Envoy send the block with its action \
        masked_remote_address";
    address_as_text(value, address) => "{value} is another spelling of an address than Envoy sends",
        "write {address}";
    regex_as_text(value) => "{value} looks like a regular expression, but is compared as text in \
        which only '*' is special",
        "write 'match: regex' next to it, or the text that Envoy sends, with '*' for any part of \
        it";

    // Descriptors of one level.
    repeated_descriptor(key, value, first) => "this level already has a descriptor with key {key} \
        and {value}, in {first}",
        "merge the two descriptors, or change the key or the value of one";
    networks_after_texts(key, first) => "the networks of {key} come after {first}, where its \
        addresses count as they are spelled",
        "write all descriptors of the key in one file, or those with networks in the first one";
    values_unreached(first) as unreached => "this descriptor is never reached: what it matches is \
        in {first} already", "remove it";
    value_unreached(value, first) => "{value} is never matched here: the descriptor in {first} has \
        it already", "remove it from one of the two";
    repeated_value(value) => "{value} occurs here twice", "remove one";
    pattern_unreached(first) as unreached => "this descriptor is never reached: the pattern in \
        {first} matches everything that it matches", "move it before that pattern, or remove it";
    key_unreached(first) as unreached => "this descriptor is never reached: the pattern in {first} \
        matches everything that it matches", "remove it, or remove that pattern";
    every_value_unreached(pattern) as unreached => "this descriptor is never reached: the pattern \
        in {pattern} matches every value of the key", "remove it, or remove that pattern";
    all_regexes_too_large(most) => "the tables of all regular expressions need more than {most} \
        bytes", "write fewer that begin with .*, join them with |, or write a set of values";
    regexes_too_large(most) => "the table of the regular expressions of this level and key needs \
        more than {most} bytes",
        "write fewer that begin with .*, join them with |, or write a set of values";

    // Conditions other than text.
    match_of_key_pattern() => "a key with '*' has no 'match'", "write a descriptor for each key";
    prefix_without_match() => "'prefix' needs 'match: cidr'", "write 'match: cidr'";
    prefix_without_networks() => "'prefix' groups addresses, and only 'match: cidr' knows them",
        "remove it";
    prefix_out_of_range() => "'prefix' is not from 1 to 128",
        "write the bits of an IPv6 network, such as 64";
    prefix_without_ipv6() => "'prefix' groups IPv6 addresses, and there is no IPv6 network",
        "remove it";
    prefix_too_short(bits, longest) => "'prefix' is {bits}, and a network has {longest} bits: a \
        group would be larger", "write at least {longest}, or 'share_threshold: true'";
    values_without_match() => "a list of values needs 'match: set' or 'match: cidr'",
        "write 'match: set', or 'match: cidr' for networks";
    set_of_value() => "a set has 'values' instead of 'value'",
        "write 'values: [...]', or 'values_file: ' and the name of a file";
    no_values(kind) => "there are no {kind}",
        "write 'values: [...]', or 'values_file: ' and the name of a file";
    values_are_empty(kind) as no_values => "there are no {kind}",
        "write at least one, or remove the descriptor";
    too_many_values(most) => "all sets together have more than {most} values",
        "write fewer values, or a pattern";
    value_next_to_networks() => "'value' is next to a list of networks",
        "write all networks in 'values'";
    values_next_to_file() => "'values' is next to 'values_file'", "write one of them";
    no_values_file(name) => "the folder of limits has no file {name} next to this one",
        "create it with one value in each line, and set the path to the folder, not to one file";
    values_file_is_empty(name) => "the file {name} has no values: nothing matches this descriptor",
        "add values, or remove the descriptor";
    no_network(text) => "{text} is no network",
        "write an address and its bits, such as 10.0.0.0/8 or 2001:db8::/32";
    bits_after_prefix(text, whole, address) => "{text} has bits after its prefix",
        "write {whole}, or {address} for the address alone";
    regex_is_missing() => "'match: regex' has no expression", "write it after 'value: '";
    regex_of_many() => "'match: regex' has one expression",
        "write it after 'value: ', with | between alternatives";
    too_many_regexes(most) => "there are more than {most} regular expressions",
        "write fewer, with | between alternatives";

    // Unlimited limits.
    unlimited_with(key) => "an unlimited limit has no {key}",
        "remove '{key}', or remove 'unlimited'";
    unlimited_with_usage() as unlimited_with => "an unlimited limit has no track_usage",
        "remove 'track_usage', or write a large 'requests_per_unit' and 'on_store_failure: allow' \
        instead of 'unlimited'";
    ignored_unit_of_unlimited() => "an unlimited limit has no unit; it is ignored", "remove 'unit'";
    ignored_requests_of_unlimited() => "'requests_per_unit' has no meaning with 'unlimited' and is \
        ignored", "remove one of them";

    // Sources of keys, for `weir envoy`.
    two_sources(key) => "the key '{key}' has two sources", "write one";
    unusable_source(key, error) => "the source of '{key}' cannot be used", "{error}";
    unused_source(key, keys) => "no limit of the domain has the key '{key}'",
        "remove its source, or write one of the keys {keys}";
    unused_source_value(key, value) => "no limit of the domain has the key '{key}' with the value \
        '{value}'", "remove the value, or write a descriptor for it in the files of the limits";
    unsent_value(source, value, reason) => "{source} never sends '{value}'", "{reason}";
    source_of_http(source) => "a TCP connection has no {source}",
        "write remote-address, server-name, peer-subject, peer-uri, local-port or generic-key";
    source_of_tcp(source) => "{source} exists for TCP connections only",
        "write another source, or --attach tcp";
    source_of_other_key(source, only, key) => "Envoy sends {source} under the key '{only}' only",
        "rename the key '{key}' to '{only}'";
    source_of_key_pattern(key) => "the key '{key}' is a pattern, and Envoy sends keys of its \
        configuration", "write a descriptor for each key that Envoy sends";
    key_without_source(key, likely) => "the key '{key}' has no source",
        "name its source, such as --from {key}={likely}; `weir envoy --help` lists all sources";
    fixed_value_of_any(limit, key) => "generic-key sends fixed values, and the limit of '{limit}' \
        is for any", "name them: --from {key}=generic-key:VALUE,VALUE";
    match_of_any_value(key, source, other) => "the limit of '{key}' counts each value by itself, \
        and {source} only sends values that the file writes",
        "write a source that sends what the request has, such as --from {other}";
    match_of_condition(source, value, other) => "{source} only sends values that the file writes, \
        and '{value}' matches others",
        "write a source that sends what the request has, such as --from {other}";
    match_of_pattern(source, value, other) => "{source} cannot match '{value}'",
        "write a source that sends what the request has, such as --from {other}";
    match_of_each_value(value, source, other) => "'{value}' counts each value by itself, and \
        {source} sends the pattern for all of them",
        "write a source that sends what the request has, such as --from {other}, or write \
        share_threshold: true";
    match_of_two_patterns(value, known, other) => "'{value}' and '{known}', in another list of \
        descriptors, may match the same request",
        "write a source that sends what the request has, such as --from {other}";
    mixed_reservations() => "Envoy would send the same entries for limits with 'reservations' and \
        for limits without",
        "write 'reservations' for all of them or for none, or a source that sends values of the \
        file, such as header-match";
    too_many_descriptors(most, lists) => "Envoy would have to send more than {most} descriptors \
        for a request, or try more than {lists}",
        "write sources that send what the request has, such as header or path";
    no_pairs(found) => "the file is {found}", "write a map, one `KEY: SOURCE` in each line";
    key_of_pair_not_text(found) => "a key is {found}, not text", "write the key of a limit";
    source_not_text(name, found) => "the source of {name} is {found}, not text",
        "write one source after it, such as `header:x-user`";

    // Tables.
    unused_table() => "no descriptor names this table",
        "write 'table: ' and its name in a descriptor, or remove the file";
    table_key_without_table() => "'table_key' needs 'table'",
        "write 'table: ' and the name of a file, or remove it";
    unknown_table_key(key) => "no level from the root to this descriptor has the key {key}",
        "write the key of this descriptor, or of one above it";
    table_not_csv(name) => "the name of the table {name} does not end in .csv",
        "give the file a name that ends in .csv";
    no_table_file(name) => "the folder of limits has no file {name} next to this one",
        "create it with the line 'value,requests_per_unit' at its top, and set the path to the \
        folder, not to one file";
    table_with_share_threshold() => "a table gives each value numbers of its own, and with \
        'share_threshold' they share a counter", "remove one of them";
    table_of_addresses() => "rows are compared byte by byte, and an address has several spellings, \
        which share a counter", "write a descriptor for each network, or a 'match: set' of texts";
    table_of_one_value() => "the descriptor has one value, and a table is for many",
        "remove 'value', or write the numbers in 'rate_limit'";
    table_without_rows(name) => "the table {name} has no rows, and the descriptor no 'rate_limit': \
        nothing is limited", "add rows, or a 'rate_limit' for values without a row";
    table_is_empty() => "the table is empty",
        "write the names of its columns in the first line, such as 'value,plan'";
    table_is_full() => "the values of the table have more than 4 GiB", "write shorter ones";
    too_many_rows(most) => "all tables together have more than {most} rows",
        "write fewer rows, or a pattern";
    too_many_columns(count, most) => "the first line has {count} cells, and a table at most {most}",
        "write the names of the columns in it";
    no_column_value() => "the table has no column 'value'",
        "write the names of the columns in the first line, such as 'value,plan'";
    repeated_column(name) => "the table has two columns {name}", "remove one of them";
    unknown_column(name, columns) => "unknown column {name}",
        "remove it, or write one of {columns}";
    other_separator(separator) => "the cells are separated by {separator}",
        "separate them by commas, as an export as CSV in English does";
    wrong_cell_count(count, cells, first) => "the row has {count} {cells}, and the first line \
        {first}",
        "write a cell for each column, also an empty one, a cell with a comma in quotes, and \
        numbers without separators";
    row_without_value() => "the row has no value",
        "write the value that it is for, or remove the row";
    repeated_row(value, line) => "the value {value} has a row already, in line {line}",
        "remove one of the two";
    row_replaces_itself(name) => "the limit replaces {name}, which would be this row itself",
        "write another name, or remove it from 'replaces'";
    plan_replaces_itself(name) => "the limit replaces {name}, which is the name of the plan of \
        this row", "give the plan another name, or remove it from 'replaces'";
    cell_of_many_lines() => "the cell goes over several lines",
        "close its quotes, or write \"\" for a quote in it";
    cell_too_long(most) => "the cell has more than {most} bytes", "write a shorter one";
    cell_not_utf8() => "the cell is not UTF-8", "write the file in UTF-8";

    // Layers of a limit.
    incomplete_limit(whose, key) => "the {whose} has no '{key}', and neither has its plan or the \
        descriptor", "write '{key}' here, in a plan or in 'rate_limit'";
    key_above_unlimited(own, key, below) => "the {own} has '{key}' and no 'requests_per_unit', and \
        {below} is unlimited", "write 'requests_per_unit' for a limit, or remove '{key}'";
    unlimited_with_options() => "an unlimited limit has no options",
        "remove them, or set an amount";
    multiplier_left_out(source) => "the limit has 'period: calendar': the 'unit_multiplier' of \
        {source} is not used for this limit", "remove it, or remove 'period'";
    anchor_without_effect() => "'anchor' changes nothing: a day begins at midnight on every date",
        "write a time of day, such as 2026-03-31T06:00, or remove it";
    region_without_share(region) => "the region {region} has no share",
        "add it to 'region_shares', or correct REGION";
    shares_without_region() => "the limit is divided by 'region_shares', and REGION is not set",
        "write the name of this region in REGION";
    share_below_one(amount, sum) => "a share of {amount} is below 1 and is 1: the regions admit \
        {sum}", "write a larger number, or larger shares";
    algorithm_without_notify(algorithm) => "a {algorithm} has no 'notify': nothing uses it up",
        "remove 'notify', or write another 'algorithm'";

    // Requests in flight.
    concurrency_by_default() => "'algorithm: concurrency' is no default",
        "write it for the limits whose last descriptor is the request's id";
    concurrency_of_many() => "'algorithm: concurrency' applies to no default, plan or row: the \
        last descriptor of such a limit is the request's id",
        "write it in the 'rate_limit' of a descriptor without table and plan";
    concurrency_of_one_value() => "the last descriptor of a concurrency limit has a value, which \
        would be the id of one request",
        "remove its 'value', or write a descriptor for the id below it, such as 'key: request', \
        and the limit there";
    concurrency_with_table() => "a concurrency limit has no table and no plan",
        "write the number in 'rate_limit', or another 'algorithm'";
    concurrency_with_window(key) => "a concurrency limit has no '{key}': 'requests_per_unit' is \
        how many requests may be in flight at a time",
        "remove '{key}', or write another 'algorithm'";

    // Reservations.
    reservations_all_or_none() => "a domain with 'commit: all_or_none' has no 'reservations'",
        "remove 'reservations', or write 'commit: each' for the domain";
    reservations_with_trial() => "a limit with 'trial' has no 'reservations': no request can \
        settle both", "remove one of the two";
    key_of_reservations() => "the descriptor above has 'reservations', for which the keys \
        'reserve' and 'settle' below it name a request's id",
        "write another key, or remove 'reservations'";

    // Leases.
    lease_with_usage() => "a limit with 'track_usage' has no 'lease': its usage is recorded with \
        each decision of the store", "remove one of the two";
    lease_with_trial() => "'lease' saves nothing with 'trial', which asks the store for each hit",
        "remove 'lease', or remove 'trial' at its end";
    lease_all_or_none() => "a domain with 'commit: all_or_none' has no 'lease': its requests are \
        decided in one step of the store", "remove 'lease', or write 'commit: each' for the domain";
    lease_all_or_none_by_setting() as lease_all_or_none => "with \
        STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true a domain that does not declare 'commit' is \
        'commit: all_or_none', which has no 'lease': its requests are decided in one step of the \
        store", "remove 'lease', or write 'commit: each' for the domain";

    // Trials.
    trial_is_empty() => "'trial' is empty",
        "write 'requests_per_unit: ' and a number below it, or remove 'trial'";
    trial_of_concurrency() => "a concurrency limit has no trial: its requests take places and give \
        them back", "remove 'trial', or write another 'algorithm' for both";
    trial_of_unlimited(key) => "the trial has no '{key}', and its limit is unlimited",
        "write '{key}: ' in the trial";
    trial_of_same_limit() => "the trial is the same as the limit and counts the same",
        "write another 'requests_per_unit' in the trial, or remove 'trial'";
    trial_with_lease() => "a trial has no 'lease': the store is asked for each of its hits",
        "remove 'lease'";
    trial_with_reservations() => "a trial has no 'reservations': no request can settle both limits",
        "remove 'reservations'";
}

/// The message of a limit that is valid without the layer `source`.
pub(crate) fn with_layer_left_out(message: Message, source: &str) -> Message {
    let what = format!("{}: {source} is not used for this limit", message.what);
    Message { what, ..message }
}

/// The message of an option that the limit has by default.
pub(crate) fn with_default(message: Message, option: &str, default: &Place) -> Message {
    let what = format!("{} ('{option}' is the default in {default})", message.what);
    Message { what, ..message }
}

/// The code of each message about limits.
pub fn codes() -> impl Iterator<Item = Code> {
    option_messages::CODES.iter().chain(CODES).copied()
}
