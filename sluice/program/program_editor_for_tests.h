// program_editor_for_tests.h - makes defective programs out of good ones.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/program/program.h"

namespace sluice {

/// A program as linked nodes, so that actions can be dropped, doubled and moved without renumbering
/// by hand. build() numbers them again and leaves out links to what is gone, and dependencies that
/// would point forward.
class ProgramEditor {
 public:
  struct Node {
    Action action;
    Node* peer = nullptr;
    std::vector<Node*> dependencies;
  };

  explicit ProgramEditor(const Program& program) : program_(program) {
    for (const RankProgram& rank : program.ranks) {
      std::vector<Node*>& list = lists.emplace_back();
      for (std::size_t k = 0; k < rank.actions.size(); ++k) {
        list.push_back(&nodes_.emplace_back(Node{rank.actions[k], nullptr, {}}));
        for (const std::int32_t d : rank.dependencies_of(k)) {
          list.back()->dependencies.push_back(list[static_cast<std::size_t>(d)]);
        }
      }
    }
    for (const std::vector<Node*>& list : lists) {
      for (Node* node : list) {
        if (node->action.peer < 0 || node->action.peer_action < 0) continue;
        node->peer = lists[static_cast<std::size_t>(node->action.peer)]
                          [static_cast<std::size_t>(node->action.peer_action)];
      }
    }
  }

  /// Position of the action of `rank` that prints as `text`.
  std::size_t find(std::size_t rank, const std::string& text) const {
    for (std::size_t k = 0; k < lists[rank].size(); ++k) {
      if (to_string(lists[rank][k]->action, program_.num_slices > 1) == text) return k;
    }
    throw std::invalid_argument("no action " + text);
  }
  Node& at(std::size_t rank, const std::string& text) { return *lists[rank][find(rank, text)]; }

  void drop(std::size_t rank, std::size_t k) {
    lists[rank].erase(lists[rank].begin() + static_cast<std::ptrdiff_t>(k));
  }
  void drop(std::size_t rank, const std::string& text) { drop(rank, find(rank, text)); }

  /// Puts a copy right behind the original.
  void repeat(std::size_t rank, std::size_t k) {
    Node* copy = &nodes_.emplace_back(*lists[rank][k]);
    lists[rank].insert(lists[rank].begin() + static_cast<std::ptrdiff_t>(k) + 1, copy);
  }
  void repeat(std::size_t rank, const std::string& text) { repeat(rank, find(rank, text)); }

  /// Moves an action right before another one of its rank.
  void move_before(std::size_t rank, const std::string& text, const std::string& other) {
    Node* node = &at(rank, text);
    drop(rank, text);
    lists[rank].insert(lists[rank].begin() + static_cast<std::ptrdiff_t>(find(rank, other)), node);
  }
  void swap(std::size_t rank, const std::string& text, const std::string& other) {
    std::swap(lists[rank][find(rank, text)], lists[rank][find(rank, other)]);
  }

  Program build() const {
    Program program = program_;
    std::map<const Node*, std::int32_t> index;
    for (const std::vector<Node*>& list : lists) {
      for (std::size_t k = 0; k < list.size(); ++k) index[list[k]] = static_cast<std::int32_t>(k);
    }
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      RankProgram& out = program.ranks[rank] = {{}, {0}, {}};
      for (std::size_t k = 0; k < lists[rank].size(); ++k) {
        const Node* node = lists[rank][k];
        out.actions.push_back(node->action);
        const auto peer = index.find(node->peer);
        out.actions.back().peer_action = peer == index.end() ? -1 : peer->second;
        for (const Node* dependency : node->dependencies) {
          const auto found = index.find(dependency);
          if (found != index.end() && found->second < static_cast<std::int32_t>(k)) {
            out.dependencies.push_back(found->second);
          }
        }
        out.dependency_begin.push_back(static_cast<std::int32_t>(out.dependencies.size()));
      }
    }
    return program;
  }

  std::vector<std::vector<Node*>> lists;

 private:
  const Program program_;
  std::deque<Node> nodes_;
};

}  // namespace sluice
