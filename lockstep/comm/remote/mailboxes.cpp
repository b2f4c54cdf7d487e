#include "lockstep/comm/remote/mailboxes.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::uint32_t kMailPhase = 3;

std::uint64_t mail_tag(std::uint64_t number) {
  return kMailPhase << 17 | number % kMostChunks;
}

}  // namespace

std::uint64_t tag_of(const Round& round, std::uint32_t phase, std::size_t chunk) {
  const std::uint64_t low = (round.collective % 4096) << 19 | phase << 17 | chunk;
  // FNV-1a over what must be the same.
  std::uint32_t guard = 0x811C9DC5;
  for (const std::uint64_t part : {std::uint64_t(round.kind), std::uint64_t(round.dtype),
                                   std::uint64_t(round.root), std::uint64_t(round.bytes)}) {
    for (int byte = 0; byte < 8; ++byte) guard = (guard ^ (part >> 8 * byte & 0xFF)) * 0x01000193;
  }
  return std::uint64_t{guard} << 32 | low;
}

Mailboxes::Mailboxes(Wire& wire) : wire_(wire), sent_(static_cast<std::size_t>(wire.workers())) {
  for (int from = 0; from < wire.workers(); ++from) {
    inboxes_.push_back(std::make_unique<Inbox>());
    if (from == wire.worker()) continue;
    for (std::uint64_t number = 0; number < kAhead; ++number) receive(from, number);
  }
}

void Mailboxes::receive(int from, std::uint64_t number) {
  Mail& mail = inbox(from).mails[number % kAhead];
  mail.head.kind = MailKind::None;
  inbox(from).transfers[number % kAhead] =
      wire_.receive(from, mail_tag(number), std::as_writable_bytes(std::span(&mail, 1)));
}

void Mailboxes::fill(Outgoing& outgoing, const MailHead& head, std::span<const std::byte> data) {
  ensure(data.size() <= kMailBytes, "[comm] a mail of {} bytes; the most are {}", data.size(),
         kMailBytes);
  outgoing.mail.head = head;
  outgoing.mail.head.bytes = static_cast<std::uint32_t>(data.size());
  std::ranges::copy(data, outgoing.mail.data.begin());
}

void Mailboxes::send_to(Outgoing& outgoing, int to) {
  const std::uint64_t number = sent_[static_cast<std::size_t>(to)]++;
  const auto bytes = std::as_bytes(std::span(&outgoing.mail, 1));
  outgoing.transfers.push_back(wire_.send(
      to, mail_tag(number), bytes.first(offsetof(Mail, data) + outgoing.mail.head.bytes)));
}

void Mailboxes::send(const MailHead& head, std::span<const std::byte> data, std::span<const int> to,
                     const Look& look) {
  Outgoing& outgoing = outgoing_[turn_++ % kAhead];
  for (const auto& transfer : outgoing.transfers) {
    while (!transfer->await()) look();
  }
  outgoing.transfers.clear();
  fill(outgoing, head, data);
  for (const int worker : to) send_to(outgoing, worker);
}

const MailHead& Mailboxes::await(int from, const Look& look) {
  Inbox& inbox = this->inbox(from);
  while (!inbox.transfers[inbox.next % kAhead]->await()) look();
  return inbox.mails[inbox.next % kAhead].head;
}

std::span<const std::byte> Mailboxes::data(int from) const {
  const Inbox& inbox = this->inbox(from);
  const Mail& mail = inbox.mails[inbox.next % kAhead];
  return std::span(mail.data).first(std::min<std::size_t>(mail.head.bytes, kMailBytes));
}

void Mailboxes::take(int from) {
  Inbox& inbox = this->inbox(from);
  receive(from, inbox.next++ + kAhead);
}

// The wire may be writing the mail; what is in it counts once its transfer is over.
MailKind Mailboxes::peek(const Mail& mail) {
  return std::atomic_ref(const_cast<MailKind&>(mail.head.kind)).load();
}

Failure Mailboxes::failure_in(const Mail& mail) {
  const std::size_t bytes = std::min<std::size_t>(mail.head.bytes, kMailBytes);
  return {.rank = mail.head.root,
          .kind = mail.head.failure,
          .message = {reinterpret_cast<const char*>(mail.data.data()), bytes}};
}

std::optional<Failure> Mailboxes::look(int from) {
  Inbox& inbox = this->inbox(from);
  for (std::uint64_t number = inbox.next; number < inbox.next + kAhead; ++number) {
    const Mail& mail = inbox.mails[number % kAhead];
    Transfer& transfer = *inbox.transfers[number % kAhead];
    if (peek(mail) == MailKind::None) {
      try {
        transfer.check();
      } catch (const LostWorker&) {
        // What came before the end counts.
        if (peek(mail) == MailKind::None) throw;
      }
    }
    if (peek(mail) == MailKind::Failure) {
      while (!transfer.await()) {
      }
      return failure_in(mail);
    }
    if (peek(mail) != MailKind::Collective) break;
  }
  return std::nullopt;
}

void Mailboxes::send_last(const std::optional<Failure>& failure,
                          std::chrono::milliseconds at_most) noexcept {
  const auto end = Clock::now() + at_most;
  MailHead head{.kind = failure ? MailKind::Failure : MailKind::Goodbye};
  std::span<const std::byte> text;
  if (failure) {
    head.root = failure->rank;
    head.failure = failure->kind;
    text = std::as_bytes(std::span(failure->message));
  }
  fill(last_, head, text.first(std::min(text.size(), kMailBytes)));
  std::vector<int> told;
  for (int to = 0; to < wire_.workers(); ++to) {
    if (to == wire_.worker()) continue;
    try {
      send_to(last_, to);
      told.push_back(to);
    } catch (const LostWorker&) {
      continue;  // nobody to tell
    }
  }
  for (std::size_t i = 0; i < told.size(); ++i) {
    try {
      // A worker that leaves as well may no longer read.
      while (!has_left(told[i]) && !last_.transfers[i]->await() && Clock::now() < end) {
      }
    } catch (const LostWorker&) {
      continue;
    }
  }
}

bool Mailboxes::has_left(int from) const {
  return std::ranges::any_of(inbox(from).mails, [](const Mail& mail) {
    return peek(mail) == MailKind::Failure || peek(mail) == MailKind::Goodbye;
  });
}

void Mailboxes::await_last(std::chrono::milliseconds at_most) noexcept {
  const auto end = Clock::now() + at_most;
  struct Late {};
  for (int from = 0; from < wire_.workers(); ++from) {
    if (from == wire_.worker()) continue;
    try {
      for (;;) {
        const MailHead& head = await(from, [&] {
          if (Clock::now() >= end) throw Late();
        });
        if (head.kind == MailKind::Failure || head.kind == MailKind::Goodbye) break;
        take(from);
      }
    } catch (const LostWorker&) {
      continue;
    } catch (const Late&) {
      return;
    }
  }
}

}  // namespace lockstep
