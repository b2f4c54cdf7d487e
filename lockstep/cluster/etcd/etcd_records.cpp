#include "lockstep/cluster/etcd/etcd_records.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/cluster/control/text.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Identities and messages may be any bytes.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class Read>
auto parse(const std::string& text, Read&& read) -> std::optional<decltype(read(json()))> {
  try {
    return read(json::parse(text));
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

json json_of(const MemberRecord& record) {
  return {{"identity", record.identity},
          {"address", record.address},
          {"port", record.port},
          {"any", record.any},
          {"seat", record.seat}};
}

MemberRecord member_of(const json& value) {
  return {.identity = shown(value.at("identity").get<std::string>()),
          .address = value.at("address").get<std::string>(),
          .port = value.at("port").get<int>(),
          .any = value.at("any").get<bool>(),
          .seat = value.at("seat").get<int>()};
}

}  // namespace

// With leading zeros, so that the keys of older generations come first.
std::string EtcdKeys::of(std::uint64_t generation) const {
  return fmt::format("{}g/{:020}/", root_, generation);
}
std::string EtcdKeys::member(std::uint64_t generation, int worker) const {
  return fmt::format("{}members/{}", of(generation), worker);
}
std::string EtcdKeys::left(std::uint64_t generation, int worker) const {
  return fmt::format("{}left/{}", of(generation), worker);
}
std::string EtcdKeys::newcomer(std::int64_t lease) const {
  return fmt::format("{}{:016x}", newcomers(), lease);
}
std::string EtcdKeys::still(std::uint64_t generation, int worker) const {
  return fmt::format("{}still/{}", of(generation), worker);
}
std::string EtcdKeys::store(std::uint64_t generation, const std::string& key) const {
  return of(generation) + "store/" + key;
}

std::string to_text(const GenerationRecord& record) {
  return dump({{"number", record.number},
               {"previous", record.previous},
               {"places", record.places},
               {"furthest", record.furthest},
               {"failures", record.failures}});
}

std::string to_text(const MemberRecord& record) {
  return dump(json_of(record));
}

std::string to_text(const FormedRecord& record) {
  json places = json::array();
  for (const FormedRecord::Place& place : record.places) {
    json value = json_of(place.member);
    value["revision"] = place.revision;
    places.push_back(value);
  }
  return dump({{"places", places}, {"ring_key", record.ring_key}});
}

std::string to_text(const FailureRecord& record) {
  return dump({{"worker", record.failure.rank},
               {"kind", static_cast<std::uint32_t>(record.failure.kind)},
               {"cause", static_cast<std::uint32_t>(record.cause)},
               {"message", record.failure.message}});
}

std::string to_text(const StillRecord& record) {
  return dump({{"step", record.progress.step},
               {"waiting", record.progress.waiting},
               {"waiting_for", record.progress.waiting_for},
               {"messages", record.progress.messages},
               {"activity", record.progress.activity},
               {"still_ms", record.still.count()}});
}

std::optional<GenerationRecord> generation_record(const std::string& text) {
  return parse(text, [](const json& value) {
    return GenerationRecord{.number = value.at("number").get<std::uint64_t>(),
                            .previous = value.at("previous").get<std::uint64_t>(),
                            .places = value.at("places").get<std::vector<int>>(),
                            .furthest = value.at("furthest").get<std::uint64_t>(),
                            .failures = value.at("failures").get<int>()};
  });
}

std::optional<MemberRecord> member_record(const std::string& text) {
  return parse(text, member_of);
}

std::optional<FormedRecord> formed_record(const std::string& text) {
  return parse(text, [](const json& value) {
    FormedRecord record;
    record.ring_key = value.at("ring_key").get<std::string>();
    for (const json& place : value.at("places")) {
      record.places.push_back(
          {.member = member_of(place), .revision = place.at("revision").get<std::int64_t>()});
    }
    return record;
  });
}

std::optional<FailureRecord> failure_record(const std::string& text) {
  return parse(text, [](const json& value) {
    const auto cause = value.at("cause").get<std::uint32_t>();
    const auto last = static_cast<std::uint32_t>(FailureCause::Reported);
    return FailureRecord{.failure = {.rank = value.at("worker").get<int>(),
                                     .kind = failure_kind_of(value.at("kind").get<std::uint32_t>()),
                                     .message = value.at("message").get<std::string>()},
                         .cause = static_cast<FailureCause>(cause <= last ? cause : 0)};
  });
}

std::optional<StillRecord> still_record(const std::string& text) {
  return parse(text, [](const json& value) {
    return StillRecord{
        .progress = {.step = value.at("step").get<std::uint64_t>(),
                     .waiting = value.at("waiting").get<bool>(),
                     .waiting_for = value.at("waiting_for").get<int>(),
                     .messages = value.at("messages").get<std::uint64_t>(),
                     .activity = shown(value.at("activity").get<std::string>())},
        .still = std::chrono::milliseconds(value.at("still_ms").get<std::int64_t>())};
  });
}

// A program that is wrong stays wrong, and what fails so often at the same place would fail again.
bool may_go_on(OnFailure policy, const Failure& failure, int failures_without_step) {
  return policy != OnFailure::Stop && failure.rank >= 0 && failure.kind != FailureKind::Usage &&
         failures_without_step <= kMostTries;
}

}  // namespace lockstep
