//! The page of keys.

use crate::paint::Text;

const KEYS: [(&str, &str); 12] = [
    ("Tab, 1 to 8", "Networks, inside hosts, TCP, UDP, DNS, ICMP, the rest, processes"),
    ("j k, arrows", "Select a row; also Page up, Page down, Home (g), End (G)"),
    ("Enter", "Show the flows of a network, host or process; details of a flow"),
    ("Esc", "Go back; in the table remove the filter"),
    ("/", "Filter by address, port, state, limit, name, 10.0.0.0/8, pid=7"),
    ("s S", "Sort by the next, or the previous, column"),
    ("r", "Reverse the order"),
    ("f, Space", "Freeze the view, or go on"),
    ("Ctrl-L", "Draw the screen anew"),
    ("? h", "Show or leave this help"),
    ("q, Ctrl-C", "Quit"),
    ("", ""),
];

const WORDS: [(&str, &str); 16] = [
    ("rate", "Bits of both directions in the last second"),
    ("RTT c, RTT s", "Smallest round trip between here and the client, the server"),
    ("loss c, loss s", "Share of segments lost between here and that side, both ways"),
    ("from c, to c", "The same for one direction: on the way from, or to, the client"),
    ("from s, to s", "Likewise for the server"),
    ("< 0.1 %", "None was lost, and the 95 % interval ends there"),
    ("limit", "Who holds back the side that sent more, > client or < server:"),
    ("", "app(lication), recv(eiver), net(work), send(er) itself"),
    ("colours", "Loss: the interval begins above 0.1 % (yellow) or 1 % (red)"),
    ("inside host", "The host that NAT hides; of routed flows the client"),
    ("silence c, s", "Longest time that the client, the server, sent without an answer"),
    ("half, 95 %", "Within this time came that share of the answers of DNS"),
    ("no answer", "Queries without an answer for 5 s"),
    ("rest", "Flows that are not tracked: one packet of each 64 KiB is noted"),
    ("process", "One of this host or its containers, with its TCP and UDP flows"),
    ("sort by loss", "By the lower end of the interval: 1 lost of 2 is not the worst"),
];

/// Its lines, of 80 columns.
pub(crate) fn lines() -> Vec<Text> {
    let row = |(name, text): &(&str, &str)| Text::plain(format!("{name:<15}{text}"));
    let mut lines = vec![Text::title("Keys")];
    lines.extend(KEYS.iter().map(row));
    lines.push(Text::title("Words"));
    lines.extend(WORDS.iter().map(row));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_small_terminal() {
        for line in lines() {
            assert!(line.text.chars().count() < 80, "{}", line.text);
        }
    }
}
