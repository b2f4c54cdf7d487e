// The tables hold published line rates, and what programs get of them: TCP over Ethernet with
// frames of 1,500 bytes carries 94% of the line rate as data, InfiniBand about 97%, PCI Express and
// NVLink about 80% in collectives. Latencies are those of a small message between two programs.
#include "lockstep/explain/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kMicro = 1e-6;
constexpr double kTcpShare = 0.94;
constexpr double kInfiniBandShare = 0.97;
constexpr double kBusShare = 0.8;

Link ethernet(const char* name, double gbit, double latency_us) {
  return {.name = name,
          .latency_s = latency_us * kMicro,
          .bytes_per_s = gbit * 1e9 / 8 * kTcpShare,
          .shared_by_host = true};
}
Link infiniband(const char* name, double gbit) {
  return {.name = name,
          .latency_s = 5 * kMicro,
          .bytes_per_s = gbit * 1e9 / 8 * kInfiniBandShare,
          .shared_by_host = true};
}
// Gigabytes per second in one direction, of one device.
Link bus(const char* name, double gigabytes, double latency_us) {
  return {.name = name,
          .latency_s = latency_us * kMicro,
          .bytes_per_s = gigabytes * 1e9 * kBusShare,
          .shared_by_host = false};
}

std::string lower(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

// "2.5ms" as 2.5 and "ms"; nothing if it does not begin with a positive number.
struct Quantity {
  double value = 0;
  std::string unit;
};
std::optional<Quantity> quantity_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !(value >= 0) || value > 1e15) return std::nullopt;
  return Quantity{value, lower(std::string_view(end, text.data() + text.size()))};
}

std::optional<double> seconds_of(std::string_view text) {
  const std::optional<Quantity> found = quantity_of(text);
  if (!found) return std::nullopt;
  for (const auto& [unit, factor] :
       {std::pair{"ns", 1e-9}, {"us", 1e-6}, {"µs", 1e-6}, {"ms", 1e-3}, {"s", 1.0}}) {
    if (found->unit == unit) return found->value * factor;
  }
  return std::nullopt;
}

std::optional<double> bytes_per_second_of(std::string_view text) {
  const std::optional<Quantity> found = quantity_of(text);
  if (!found || found->value <= 0) return std::nullopt;
  std::string unit = found->unit;
  if (unit.ends_with("/s")) unit.resize(unit.size() - 2);
  const auto is = [&](const char* name) { return unit == name; };
  for (const auto& [prefix, factor] : {std::pair{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"t", 1e12}}) {
    const std::string head = prefix;
    if (is((head + "bit").c_str()) || is((head + "bps").c_str())) {
      return found->value * factor / 8 * kTcpShare;
    }
    if (is((head + "b").c_str())) return found->value * factor;  // GB/s are taken as they are
  }
  return std::nullopt;
}

[[noreturn]] void fail_for_link(std::string_view text) {
  fail<UsageError>(
      "--network {}: there is no such interconnect; use one of {}, or figures such as 1Gbit,2ms or "
      "12GB/s,5us",
      text, known_link_names());
}

template <class Named>
std::string names_of(const std::vector<Named>& all) {
  std::string names;
  for (const Named& each : all) names += (names.empty() ? "" : ", ") + each.name;
  return names;
}

}  // namespace

const std::vector<Link>& known_links() {
  static const std::vector<Link> links = {
      ethernet("1Gbit", 1, 50),     ethernet("10Gbit", 10, 25),   ethernet("25Gbit", 25, 20),
      ethernet("40Gbit", 40, 15),   ethernet("50Gbit", 50, 15),   ethernet("100Gbit", 100, 10),
      ethernet("200Gbit", 200, 10), ethernet("400Gbit", 400, 10), infiniband("ib-edr", 100),
      infiniband("ib-hdr", 200),    infiniband("ib-ndr", 400),    bus("pcie3", 15.75, 6),
      bus("pcie4", 31.5, 5),        bus("pcie5", 63, 5),          bus("nvlink1", 80, 4),
      bus("nvlink2", 150, 4),       bus("nvlink3", 300, 3),       bus("nvlink4", 450, 3),
      bus("nvlink5", 900, 3)};
  return links;
}

std::string known_link_names() {
  return names_of(known_links());
}

Link parse_link(std::string_view text) {
  // "8xib-ndr": so many cards per host.
  const std::size_t cross = text.find('x');
  int cards = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cards);
  const bool several = error == std::errc() && end != text.data() + text.size() && *end == 'x' &&
                       cross + 1 < text.size();
  if (several) {
    require(cards >= 1 && cards <= 64, "--network {}: a host has 1 to 64 cards", text);
    Link link = parse_link(text.substr(cross + 1));
    link.bytes_per_s *= cards;
    link.name = std::string(text);
    return link;
  }
  const std::size_t comma = text.find(',');
  const std::string_view head = text.substr(0, comma);
  std::optional<double> latency;
  if (comma != std::string_view::npos) {
    latency = seconds_of(text.substr(comma + 1));
    require(latency.has_value(), "--network {}: '{}' is no latency; write it as 2ms or 50us", text,
            text.substr(comma + 1));
  }
  const auto known = std::ranges::find_if(
      known_links(), [&](const Link& link) { return lower(link.name) == lower(head); });
  Link link;
  bool measured = false;  // figures in bytes per second: as a program has measured them
  if (known != known_links().end()) {
    link = *known;
  } else {
    const std::optional<double> rate = bytes_per_second_of(head);
    if (!rate) fail_for_link(text);
    measured = !lower(head).ends_with("bit");
    // That of the next slower Ethernet, unless it is given.
    link = {.name = std::string(head),
            .latency_s = known_links().front().latency_s,
            .bytes_per_s = *rate,
            .shared_by_host = true};
    for (const Link& each : known_links()) {
      if (each.name.ends_with("Gbit") && each.bytes_per_s <= *rate) link.latency_s = each.latency_s;
    }
  }
  if (latency) {
    // Software adds something to the delay of a line.
    link.latency_s = measured ? *latency : link.latency_s + *latency;
    link.name = std::string(text);
  }
  return link;
}

Topology parse_topology(std::string_view text) {
  const auto whole = [&](std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    require(error == std::errc() && end == digits.data() + digits.size() && value > 0 &&
                value <= 1'000'000,
            "--topology {}: write replicas per host and hosts, such as 8x4, or only 8", text);
    return value;
  };
  const std::size_t cross = text.find_first_of("xX");
  if (cross == std::string_view::npos) return {.per_host = whole(text), .hosts = 0};
  return {.per_host = whole(text.substr(0, cross)), .hosts = whole(text.substr(cross + 1))};
}

const std::vector<DevicePeak>& known_devices() {
  // Data sheets; tensor-core rates without sparsity.
  static const std::vector<DevicePeak> devices = {
      {"p100", "NVIDIA P100 SXM2", 10.6e12, 0, 21.2e12, 732e9, 16e9},
      {"v100", "NVIDIA V100 SXM2", 15.7e12, 0, 125e12, 900e9, 16e9},
      {"t4", "NVIDIA T4", 8.1e12, 0, 65e12, 320e9, 16e9},
      {"a10", "NVIDIA A10", 31.2e12, 62.5e12, 125e12, 600e9, 24e9},
      {"a100", "NVIDIA A100 SXM4 80GB", 19.5e12, 156e12, 312e12, 2039e9, 80e9},
      {"l4", "NVIDIA L4", 30.3e12, 60e12, 121e12, 300e9, 24e9},
      {"l40s", "NVIDIA L40S", 91.6e12, 183e12, 362e12, 864e9, 48e9},
      {"h100", "NVIDIA H100 SXM", 67e12, 494e12, 989e12, 3350e9, 80e9},
      {"h200", "NVIDIA H200", 67e12, 494e12, 989e12, 4800e9, 141e9},
      {"b200", "NVIDIA B200", 75e12, 1125e12, 2250e12, 8000e9, 180e9}};
  return devices;
}

const DevicePeak* find_device(std::string_view name) {
  const auto found = std::ranges::find(known_devices(), lower(name), &DevicePeak::name);
  return found == known_devices().end() ? nullptr : &*found;
}

const DevicePeak* find_hardware(std::string_view hardware) {
  const std::string text = lower(hardware);
  const DevicePeak* best = nullptr;
  for (const DevicePeak& device : known_devices()) {
    const std::size_t at = text.find(device.name);
    if (at == std::string::npos) continue;
    const std::size_t end = at + device.name.size();
    const bool whole =
        end == text.size() || std::isalnum(static_cast<unsigned char>(text[end])) == 0;
    if (whole && (best == nullptr || device.name.size() > best->name.size())) best = &device;
  }
  return best;
}

std::string known_device_names() {
  return names_of(known_devices());
}

}  // namespace lockstep
