# The library behind structured output: xgrammar 0.2.8, built here from the sources that scripts/fetch_xgrammar unpacks
# under build/, or from a folder that is there already (-DQUIRE_XGRAMMAR=DIR). Without either the daemon is built without
# structured output and says so, to this configuration and in GetServerInfo. Its headers are seen by one source of
# engine/constraint (component_check). Our warnings are off for it, our sanitizers are on.
set(QUIRE_XGRAMMAR "" CACHE PATH "Sources of xgrammar 0.2.8; empty: those of scripts/fetch_xgrammar; OFF: none")
set(xgrammar "${QUIRE_XGRAMMAR}")
if(xgrammar STREQUAL "")
  set(xgrammar ${PROJECT_SOURCE_DIR}/build/xgrammar-0.2.8)
elseif(xgrammar AND NOT EXISTS ${xgrammar}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "QUIRE_XGRAMMAR: ${xgrammar} has no include/xgrammar/xgrammar.h")
endif()
if(xgrammar AND EXISTS ${xgrammar}/include/xgrammar/xgrammar.h)
  message(STATUS "structured output: xgrammar in ${xgrammar}")
  set(QUIRE_HAS_XGRAMMAR ON)
else()
  message(STATUS "structured output: left out; scripts/fetch_xgrammar gets the library that it needs")
  set(QUIRE_HAS_XGRAMMAR OFF)
  return()
endif()

file(GLOB sources ${xgrammar}/cpp/*.cc ${xgrammar}/cpp/converter_ext/*.cc ${xgrammar}/cpp/support/*.cc)

# Sources that are mended in a copy: mend_begin(NAME), mend(WRONG RIGHT) for each text that has to stand in the source of
# 0.2.8, mend_end().
function(mend_begin name)
  file(READ ${xgrammar}/cpp/${name}.cc text)
  set(text "${text}" PARENT_SCOPE)
  set(name ${name} PARENT_SCOPE)
endfunction()
function(mend wrong right)
  string(FIND "${text}" "${wrong}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${xgrammar}/cpp/${name}.cc is not that of xgrammar 0.2.8, which has: ${wrong}")
  endif()
  string(REPLACE "${wrong}" "${right}" text "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()
function(mend_end)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/xgrammar/${name}.cc CONTENT "${text}" @ONLY)
  list(REMOVE_ITEM sources ${xgrammar}/cpp/${name}.cc)
  list(APPEND sources ${PROJECT_BINARY_DIR}/xgrammar/${name}.cc)
  set(sources "${sources}" PARENT_SCOPE)
endfunction()

# It takes a token to lie under another one that stands anywhere in it, where its beginning is meant; masks then refuse
# tokens that the matcher accepts (GrammarTest.TokensUnderAnotherBeginWithIt).
mend_begin(tokenizer_info)
mend([[token.find(prefix_stack.top().first) == std::string::npos]]
     [[token.compare(0, prefix_stack.top().first.size(), prefix_stack.top().first) != 0]])
mend_end()

# Nothing bounds how long it works, nor what it keeps. Where it does most, it says so to our wrapper
# (grammar_library_xgrammar.cc), which ends calls that take too much by an exception.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/xgrammar_counters.inc)
file(READ ${CMAKE_CURRENT_LIST_DIR}/xgrammar_counters.inc counters)

# The parser: states that it looks at, and those that it keeps of each byte.
mend_begin(earley_parser)
mend([[namespace xgrammar {
]] "${counters}namespace xgrammar {
")
mend([[bool RepeatDetector::IsVisited(const ParserState& state) const {
]] [[bool RepeatDetector::IsVisited(const ParserState& state) const {
  CountSteps(1);
]])
mend([[  for (const auto& [ref_id, parent_state] : parent_states_map) {
]] [[  CountSteps(parent_states_map.size() / 16);
  for (const auto& [ref_id, parent_state] : parent_states_map) {
]])
mend([[const auto in_vec = [&](const ParserState& state_) {
]] [[const auto in_vec = [&](const ParserState& state_) {
        CountSteps(rule_id_to_completable_states_.Back().size() / 16);
]])
mend([[std::vector<std::pair<int32_t, ParserState>> to_added_states;
]] [[std::vector<std::pair<int32_t, ParserState>> to_added_states;
        CountSteps(parent_states_map.size() / 16);
]])
mend([[  // Scan all the scanable states.
]] [[  CountSteps(1 + latest_states.size());
]])
mend([[    flags_cache.resize(fsm.NumStates());
]] [[    CountSteps(fsm.NumStates() / 256);
    flags_cache.resize(fsm.NumStates());
]])
mend([[  scanable_state_history_.PushBack(tmp_states_to_be_added_);
]] [[  CountStates(tmp_states_to_be_added_.size() + rule_id_to_completable_states_.Back().size());
  scanable_state_history_.PushBack(tmp_states_to_be_added_);
]])
mend([[    visited_set_.insert(state);
  } else {
]] [[    CountSteps(4);
    visited_set_.insert(state);
  } else {
]])
mend([[GetEdges(state.element_id)) {
    if ((!edge.IsCharRange())]] [[GetEdges(state.element_id)) {
    if (++num_edges % 16 == 0) CountSteps(1);
    if ((!edge.IsCharRange())]])
mend([[void EarleyParser::AdvanceFsm(const ParserState& state, const uint8_t ch) {
]] [[void EarleyParser::AdvanceFsm(const ParserState& state, const uint8_t ch) {
  int num_edges = 0;
]])
mend([[  for (int32_t rule_id : grammar_->allow_empty_rule_ids) {
]] [[  CountSteps(grammar_->NumRules() / 16);
  for (int32_t rule_id : grammar_->allow_empty_rule_ids) {
]])
mend_end()

# The masks that are made beforehand: each looks through the vocabulary, but for what another one has found of it.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/xgrammar_shared_masks.inc)
file(READ ${CMAKE_CURRENT_LIST_DIR}/xgrammar_shared_masks.inc shared_masks)
mend_begin(grammar_compiler)
mend([[#include "xgrammar/tokenizer_info.h"
]] "#include \"xgrammar/tokenizer_info.h\"
${counters}${shared_masks}")
mend([[      std::optional<RuleLevelCache>& rule_level_cache
  )]] [[      std::optional<RuleLevelCache>& rule_level_cache,
      SharedMasks* shared_masks
  )]])
mend([[        rule_level_cache_(rule_level_cache) {}
  /*!]] [[        rule_level_cache_(rule_level_cache),
        shared_masks_(shared_masks) {}
  /*!]])
mend([[  std::optional<RuleLevelCache> rule_level_cache_;

  // Temporary data for GetAdaptiveTokenMask.]] [[  std::optional<RuleLevelCache> rule_level_cache_;

  SharedMasks* const shared_masks_;

  // Temporary data for GetAdaptiveTokenMask.]])
# A budget of characters anywhere in the grammar would have all tokens of all rules looked through byte by byte.
mend([[  if (has_char_budget_rules_) {
    speculative_calculation = false;]] [[  if (has_char_budget_rules_ && shared_masks_->MayEnterBudget(grammar_, init_rule_id_)) {
    speculative_calculation = false;]])
mend([[  // Byte path: skip tokens already accepted by token edges.
  bool rejected_filled;]] [[  SharedMasks::Continuations continuations;
  continuations.fill(SharedMasks::kNone);
  const bool may_enter_budget =
      has_char_budget_rules_ && shared_masks_->MayEnterBudget(grammar_, init_rule_id_);
  if (!is_root_rule && !may_enter_budget) {
    continuations = shared_masks_->Of(grammar_, initial_state_, token_edge_accepted);
  }
  std::bitset<256> known;
  for (int byte = 0; byte < 256; ++byte) {
    known[byte] = shared_masks_->Has(continuations[byte], byte);
  }
  first_character_mask &= ~known;

  // Byte path: skip tokens already accepted by token edges.
  bool rejected_filled;]])
mend([[  // Token edges are rechecked at runtime]] [[  rejected_filled = shared_masks_->Merge(
      continuations,
      known,
      rejected_filled,
      &tmp_accepted_indices_,
      &tmp_rejected_indices_,
      &tmp_uncertain_indices_
  );

  // Token edges are rechecked at runtime]])
mend([[  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
]] [[  SharedMasks shared_masks(tokenizer_info_.GetSortedDecodedVocab(), compiled_grammar_impl->grammar);
  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
]])
mend([[        tokenizer_info_,
        rule_level_cache_
    );]] [[        tokenizer_info_,
        rule_level_cache_,
        &shared_masks
    );]])
mend([[  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
]] [[  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
    CountSteps(tokenizer_info_.GetVocabSize() / 4096);
]])
mend([[      compiled_grammar_impl->adaptive_token_mask_cache[state] = cur_adaptive_token_mask_cache;
]] [[      CountMaskBytes(sizeof(AdaptiveTokenMask) + MemorySize(cur_adaptive_token_mask_cache));
      compiled_grammar_impl->adaptive_token_mask_cache[state] = cur_adaptive_token_mask_cache;
]])
mend_end()

# It writes out a repetition of a repetition, and so on, without an end where they are one: a ::= a{0,3}.
mend_begin(grammar_functor)
mend([[namespace xgrammar {

]] "${counters}namespace xgrammar {
")
mend([[      grammar_expr_id = VisitExpr(ref_choice[0]);
]] [[      CountNesting(1);
      grammar_expr_id = VisitExpr(ref_choice[0]);
      CountNesting(-1);
]])
mend_end()

# The automaton of a rule, whose states are merged in passes.
mend_begin(fsm)
mend([[namespace xgrammar {

]] "${counters}namespace xgrammar {
")
mend([[  while (changed) {
    int n = result.NumStates();
]] [[  while (changed) {
    int n = result.NumStates();
    CountSteps(8 * static_cast<std::size_t>(n));
]])
mend_end()

add_library(quire_xgrammar STATIC ${sources})
target_include_directories(quire_xgrammar SYSTEM PUBLIC ${xgrammar}/include ${xgrammar}/3rdparty/dlpack/include
                           PRIVATE ${xgrammar}/3rdparty/picojson ${xgrammar}/cpp)
# Its words go where our wrapper says (LogMessageImpl), not to the daemon's standard error.
target_compile_definitions(quire_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                           XGRAMMAR_LOG_CUSTOMIZE=1)
set_target_properties(quire_xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD OFF)
_quire_common_options(quire_xgrammar)
target_compile_options(quire_xgrammar PRIVATE -w -Wno-error)
