//! The state of the view, and how keys change it. Knows no terminal.

use weir_flows::{Flow, LocalEnd, Reading, UdpFlow};

use crate::history::{Ends, History, ends};
use crate::key::Key;
use crate::order::{Sort, sort};
use crate::rows::{Filter, Of, Row, Tab, rows};

/// The page that covers the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Page {
    /// Nothing.
    Table,
    /// The details of a flow.
    Details(Ends),
    /// The details of a flow of UDP.
    UdpDetails(Ends),
    /// The keys.
    Help,
}

/// The state of the view.
#[derive(Debug)]
pub struct View {
    pub(crate) place: String,
    pub(crate) reading: Reading,
    pub(crate) history: History,
    /// The latest reading while an older one is shown.
    waiting: Option<Box<Reading>>,
    pub(crate) frozen: bool,
    pub(crate) tab: Tab,
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    pub(crate) filter: Filter,
    /// The filter is being written.
    pub(crate) writing: bool,
    pub(crate) page: Page,
    pub(crate) selected: Option<Of>,
    /// The first line of a page that is shown; of a table the first row.
    pub(crate) top: usize,
    /// Lines that the last picture had room for.
    pub(crate) room: usize,
    pub(crate) rows: Vec<Row>,
    /// A line about the recording, and whether it is a warning.
    pub(crate) remark: Option<(String, bool)>,
}

/// No filter is longer.
const LONGEST_FILTER: usize = 200;

impl View {
    /// A view of nothing yet. `place` names the network namespace.
    pub fn new(place: &str) -> Self {
        View {
            place: weir_text::escape::line(place),
            reading: Reading::empty(),
            history: History::default(),
            waiting: None,
            frozen: false,
            tab: Tab::Networks,
            sort: Sort::Rate,
            reverse: false,
            filter: Filter::default(),
            writing: false,
            page: Page::Table,
            selected: None,
            top: 0,
            room: 1,
            rows: Vec::new(),
            remark: None,
        }
    }

    /// A new reading. A frozen view keeps it for later.
    pub fn read(&mut self, reading: Reading) {
        if self.frozen {
            self.waiting = Some(Box::new(reading));
            return;
        }
        self.history.add(&reading);
        self.reading = reading;
        self.arrange();
    }

    /// Sets the line about the recording; a warning stands out.
    pub fn remark(&mut self, text: &str, is_warning: bool) {
        self.remark = Some((weir_text::escape::line(text), is_warning));
    }

    /// Makes the rows anew.
    fn arrange(&mut self) {
        self.rows = rows(self.tab, &self.reading, &self.history);
        self.rows.retain(|row| self.filter.leaves(row));
        sort(&mut self.rows, self.sort, self.reverse);
    }

    /// The flow whose details are asked for, as long as it is in the table.
    pub(crate) fn flow(&self, wanted: &Ends) -> Option<&Flow> {
        self.reading.flows.iter().find(|flow| ends(flow) == *wanted)
    }

    /// The same of UDP.
    pub(crate) fn udp_flow(&self, wanted: &Ends) -> Option<&UdpFlow> {
        self.reading.udp_flows.iter().find(|flow| (flow.client, flow.server) == *wanted)
    }

    /// The number of the selected row.
    pub(crate) fn selected_row(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.of == *selected)
    }

    /// Obeys a key; false: the user wants to leave.
    pub fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Interrupt => return false,
            _ if self.writing => self.write(key),
            Key::Char('q') => return false,
            Key::Char('?' | 'h') => self.toggle_help(),
            Key::Char(' ' | 'f') => self.freeze(),
            Key::Escape | Key::Backspace => self.back(),
            _ if self.page != Page::Table => self.scroll(key),
            _ => self.press_in_table(key),
        }
        true
    }

    fn press_in_table(&mut self, key: Key) {
        match key {
            Key::Tab => self.show(self.next_tab(1)),
            Key::BackTab => self.show(self.next_tab(Tab::ALL.len() - 1)),
            Key::Char('1') => self.show(Tab::Networks),
            Key::Char('2') => self.show(Tab::Hosts),
            Key::Char('3') => self.show(Tab::Flows),
            Key::Char('4') => self.show(Tab::Udp),
            Key::Char('5') => self.show(Tab::Dns),
            Key::Char('6') => self.show(Tab::Icmp),
            Key::Char('7') => self.show(Tab::Untracked),
            Key::Char('8') => self.show(Tab::Processes),
            Key::Char('/') => self.writing = true,
            Key::Char('s') => self.order(self.sort.next(self.tab, false), false),
            Key::Char('S') => self.order(self.sort.next(self.tab, true), false),
            Key::Char('r') => self.order(self.sort, !self.reverse),
            Key::Enter => self.enter(),
            _ => self.select(key),
        }
    }

    fn next_tab(&self, steps: usize) -> Tab {
        let at = Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or(0);
        Tab::ALL[(at + steps) % Tab::ALL.len()]
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        if !Sort::of(tab).contains(&self.sort) {
            (self.sort, self.reverse) = (Sort::of(tab)[0], false);
        }
        self.selected = None;
        self.top = 0;
        self.arrange();
    }

    fn order(&mut self, sort: Sort, reverse: bool) {
        self.sort = sort;
        self.reverse = reverse;
        self.top = 0;
        self.arrange();
    }

    fn toggle_help(&mut self) {
        self.page = if self.page == Page::Help { Page::Table } else { Page::Help };
        self.top = 0;
    }

    fn freeze(&mut self) {
        self.frozen = !self.frozen;
        if let Some(reading) = self.waiting.take().filter(|_| !self.frozen) {
            self.read(*reading);
        }
    }

    /// From a page to the table; from there to one without a filter.
    fn back(&mut self) {
        if self.page != Page::Table {
            self.page = Page::Table;
            self.top = 0;
        } else {
            self.filter = Filter::default();
            self.arrange();
        }
    }

    fn write(&mut self, key: Key) {
        match key {
            Key::Enter => self.writing = false,
            Key::Escape => {
                self.writing = false;
                self.filter.text.clear();
            }
            Key::Backspace => drop(self.filter.text.pop()),
            Key::Char(c) if self.filter.text.len() < LONGEST_FILTER => self.filter.text.push(c),
            _ => {}
        }
        self.top = 0;
        self.arrange();
    }

    /// The details of a flow, or the flows of a host, a network or a process.
    fn enter(&mut self) {
        match self.selected_row().map(|at| self.rows[at].of.clone()) {
            Some(Of::Flow(flow)) => {
                self.page = Page::Details(flow);
                self.top = 0;
            }
            Some(Of::Udp(flow)) => {
                self.page = Page::UdpDetails(flow);
                self.top = 0;
            }
            Some(Of::Host(host)) => {
                self.only(format!("{host}/{}", if host.is_ipv4() { 32 } else { 128 }), Tab::Flows);
            }
            Some(Of::Network(Some(network))) => self.only(network, Tab::Flows),
            Some(Of::Process(Some((LocalEnd { pid: Some(pid), .. }, _)))) => self.enter_process(pid),
            Some(Of::Network(None) | Of::Icmp(..) | Of::Untracked(_) | Of::Process(_)) | None => {}
        }
    }

    /// The flows of a process: those of TCP, or of UDP if it has no others.
    fn enter_process(&mut self, pid: u32) {
        let has = |end: &Option<LocalEnd>| end.as_ref().is_some_and(|end| end.pid == Some(pid));
        let by_tcp = self.reading.flows.iter().any(|flow| has(&flow.client_here) || has(&flow.server_here));
        self.only(format!("pid={pid}"), if by_tcp { Tab::Flows } else { Tab::Udp });
    }

    fn only(&mut self, filter: String, tab: Tab) {
        self.filter = Filter { text: filter };
        self.show(tab);
    }

    /// The place in a list of so many lines after a key that moves by lines or pages; `None` for other keys.
    fn moved(key: Key, at: usize, last: usize, page: usize) -> Option<usize> {
        Some(match key {
            Key::Up | Key::Char('k') => at.saturating_sub(1),
            Key::Down | Key::Char('j') => (at + 1).min(last),
            Key::PageUp => at.saturating_sub(page),
            Key::PageDown => (at + page).min(last),
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => last,
            _ => return None,
        })
    }

    fn select(&mut self, key: Key) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let at = match self.selected_row() {
            Some(at) => View::moved(key, at, last, self.room.max(1)),
            // The first key selects, from the top or from the end.
            None if key == Key::End || key == Key::Char('G') => Some(last),
            None => View::moved(key, 0, 0, 0),
        };
        if let Some(at) = at {
            self.selected = Some(self.rows[at].of.clone());
        }
    }

    fn scroll(&mut self, key: Key) {
        // The picture knows how many lines there are, and stops at the last one.
        if let Some(top) = View::moved(key, self.top, usize::MAX, self.room.max(1)) {
            self.top = top;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{flow, network, reading};

    fn view() -> View {
        let mut reading = reading(vec![
            flow("10.0.0.2:1", "198.51.100.7:443"),
            flow("10.0.0.2:2", "198.51.101.7:443"),
            flow("10.0.0.3:3", "198.51.100.7:80"),
        ]);
        reading.networks = vec![network("198.51.100.0/24"), network("198.51.101.0/24")];
        let mut view = View::new("this namespace");
        view.read(reading);
        view
    }

    fn press(view: &mut View, keys: &str) {
        for c in keys.chars() {
            assert!(view.press(if c == '\n' { Key::Enter } else { Key::Char(c) }), "{c:?}");
        }
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn from_a_network_to_its_flows_to_the_details_and_back() {
        let mut view = view();
        press(&mut view, "\n");
        assert_eq!((view.tab, view.page), (Tab::Networks, Page::Table), "nothing is selected yet");
        press(&mut view, "j\n");
        assert_eq!((view.tab, view.rows.len()), (Tab::Flows, 2), "{:?}", names(&view));
        press(&mut view, "jj\n");
        let Page::Details(of) = view.page else { panic!("{:?}", view.page) };
        assert_eq!(view.flow(&of).unwrap().client.to_string(), view.rows[1].name.split(' ').next().unwrap());
        view.press(Key::Escape);
        assert_eq!((view.page, view.rows.len()), (Page::Table, 2));
        view.press(Key::Escape);
        assert_eq!(view.rows.len(), 3, "without the filter");
    }

    #[test]
    fn a_filter_is_written_and_taken_away() {
        let mut view = view();
        press(&mut view, "3/q443");
        assert_eq!((view.filter.text.as_str(), view.rows.len()), ("q443", 0), "q is a letter here");
        for _ in 0..4 {
            view.press(Key::Backspace);
        }
        press(&mut view, "443\n");
        assert_eq!((view.writing, view.rows.len()), (false, 2));
        press(&mut view, "/");
        view.press(Key::Escape);
        assert_eq!((view.writing, view.rows.len()), (false, 3));
        press(&mut view, &format!("/{}", "x".repeat(1000)));
        assert_eq!(view.filter.text.len(), LONGEST_FILTER);
    }

    #[test]
    fn a_selection_stays_with_its_row() {
        let mut view = view();
        press(&mut view, "3ssssssssj");
        assert_eq!((view.sort, view.selected_row()), (Sort::Name, Some(0)));
        let first = names(&view)[0].to_owned();
        press(&mut view, "r");
        assert_eq!(view.rows[view.selected_row().unwrap()].name, first);
        assert_eq!(view.selected_row(), Some(2));
        // Its flow has gone, and the next key selects anew.
        view.read(reading(vec![flow("10.0.0.9:9", "198.51.100.7:80")]));
        assert_eq!(view.selected_row(), None);
        press(&mut view, "j");
        assert_eq!(view.selected_row(), Some(0));
    }

    #[test]
    fn a_frozen_view_keeps_its_reading_and_then_shows_the_latest() {
        let mut view = view();
        press(&mut view, "f");
        for n in 1..4 {
            view.read(Reading { seconds: f64::from(n), ..Reading::empty() });
        }
        assert_eq!((view.reading.seconds, view.reading.flows.len()), (0.0, 3));
        press(&mut view, "f");
        assert_eq!((view.reading.seconds, view.frozen), (3.0, false));
    }

    #[test]
    fn q_and_ctrl_c_leave_and_other_keys_do_not() {
        let mut view = view();
        assert!(!view.press(Key::Char('q')));
        press(&mut view, "/");
        assert!(!view.press(Key::Interrupt));
        assert!(view.press(Key::Char('q')));
        for tab in Tab::ALL {
            let mut view = View::new("empty");
            view.show(tab);
            for key in [Key::Enter, Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Home, Key::End] {
                assert!(view.press(key));
            }
        }
    }
}
