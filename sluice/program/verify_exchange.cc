#include "sluice/program/verify_exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "sluice/program/pass_grid.h"

namespace sluice {
namespace {

class Entries {
 public:
  Entries(const Program& program, std::vector<Problem>& problems)
      : program_(program),
        exchange_(program.exchange),
        grid_{program.num_stages(), program.num_microbatches, program.num_slices},
        problems_(problems),
        listed_(2 * grid_.size(), nullptr) {}

  void run() {
    for (int rank = 0; rank < program_.num_ranks(); ++rank) list_passes(rank);
    for (int rank = 0; rank < program_.num_ranks(); ++rank) {
      for (const PassExchange& exchange : exchange_.ranks[index(rank)]) {
        if (find(rank, exchange.pass) != &exchange) continue;  // reported already
        check_lend(rank, exchange);
        for (const ExchangeEntry& entry : exchange.serve) {
          check_answer(rank, exchange, entry, /*lends=*/false);
        }
      }
    }
  }

 private:
  // Meets the listed passes on the way through the rank's actions.
  void list_passes(int rank) {
    const std::vector<PassExchange>& exchanges = exchange_.ranks[index(rank)];
    std::size_t next = 0;
    for (const Action& action : program_.ranks[index(rank)].actions) {
      if (next == exchanges.size()) return;
      if (action.kind != ActionKind::kPass || action.pass != exchanges[next].pass) continue;
      if (!runs_layers(action.pass.kind)) {
        add(rank, "{} has no attention to exchange", text(action.pass));
      } else if (grid_.contains(action.pass)) {
        place(action.pass) = &exchanges[next];
      }
      ++next;
    }
    if (next == exchanges.size()) return;
    add(rank, "{} is to exchange attention, but rank {} does not run it{}",
        text(exchanges[next].pass), rank,
        next == 0 ? std::string() : fmt::format(" after {}", text(exchanges[next - 1].pass)));
  }

  void check_lend(int rank, const PassExchange& exchange) {
    std::int32_t free_from = 0;  // entries are ascending and disjoint
    for (const ExchangeEntry& entry : exchange.lend) {
      if (entry.begin < 0 || entry.begin >= entry.end || entry.end > 2 * exchange.pass.slice) {
        add(rank, "{} lends half slices {} to {} of its K/V, but only older slices can be lent, {}",
            text(exchange.pass), entry.begin, entry.end, allowed(exchange.pass));
      } else if (entry.begin < free_from) {
        add(rank, "{} lends half slice {} twice", text(exchange.pass), entry.begin);
      }
      free_from = std::max(free_from, entry.end);
      check_answer(rank, exchange, entry, /*lends=*/true);
    }
  }

  static std::string allowed(const Pass& pass) {
    return pass.slice == 0 ? "and there are none" : fmt::format("0 to {}", 2 * pass.slice);
  }

  // The other side must carry the same entry, once.
  void check_answer(int rank, const PassExchange& mine, const ExchangeEntry& entry, bool lends) {
    const char* verb = lends ? "lends to" : "serves";
    if (entry.peer < 0 || entry.peer >= program_.num_ranks() || entry.peer == rank) {
      return add(rank, "{} {} rank {}, which is no other rank", text(mine.pass), verb, entry.peer);
    }
    const PassExchange* theirs = find(entry.peer, entry.peer_pass);
    if (theirs == nullptr) {
      return add(rank, "{} {} {} of rank {}, which exchanges nothing", text(mine.pass), verb,
                 text(entry.peer_pass), entry.peer);
    }
    if (theirs->slot != mine.slot) {
      return add(rank, "{} of slot {} {} {} of slot {}", text(mine.pass), mine.slot, verb,
                 text(entry.peer_pass), theirs->slot);
    }
    if (direction_of(mine.pass.kind) != direction_of(theirs->pass.kind)) {
      return add(rank, "{} {} {}: a forward goes with forwards alone", text(mine.pass), verb,
                 text(entry.peer_pass));
    }
    const ExchangeEntry wanted{rank, mine.pass, entry.begin, entry.end};
    const std::vector<ExchangeEntry>& answers = lends ? theirs->serve : theirs->lend;
    const std::vector<ExchangeEntry>& own = lends ? mine.lend : mine.serve;
    if (std::count(answers.begin(), answers.end(), wanted) != 1 ||
        std::count(own.begin(), own.end(), entry) != 1) {
      add(rank, "{} {} {} of rank {} half slices {} to {}, but the two do not both say so once",
          text(mine.pass), verb, text(entry.peer_pass), entry.peer, entry.begin, entry.end);
    }
  }

  // What is listed for a pass of a rank, null when nothing is.
  const PassExchange* find(int rank, const Pass& pass) {
    if (!grid_.contains(pass) || !runs_layers(pass.kind)) return nullptr;
    const PassExchange* found = place(pass);
    if (found == nullptr || found->pass != pass) return nullptr;
    return program_.placement.rank_of(pass.stage) == rank ? found : nullptr;
  }

  const PassExchange*& place(const Pass& pass) {
    return listed_[2 * grid_.index(pass) + index(direction_of(pass.kind))];
  }

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::string text(const Pass& pass) const { return to_string(pass, true); }

  template <typename... Args>
  void add(int rank, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back({rank, -1, fmt::format(format, std::forward<Args>(args)...)});
  }

  const Program& program_;
  const ExchangePlan& exchange_;
  const PassGrid grid_;
  std::vector<Problem>& problems_;
  std::vector<const PassExchange*> listed_;  // by (stage, microbatch, slice) and direction
};

}  // namespace

void check_exchange(const Program& program, std::vector<Problem>& problems) {
  const std::size_t num_lists = program.exchange.ranks.size();
  if (num_lists == 0) return;
  if (num_lists != program.ranks.size()) {
    problems.push_back({-1, -1,
                        fmt::format("the program has {} exchange lists for {} ranks", num_lists,
                                    program.ranks.size())});
    return;
  }
  Entries(program, problems).run();
}

}  // namespace sluice
