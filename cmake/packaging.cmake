# cmake --install, and CPack's deb and tgz. Only built targets are installed: a build without tools has no `quire`.
# Components: binaries; configs; assets (schema, licence, source of the embedded model); docs (with manual pages and
# completion scripts).
include(GNUInstallDirs)

foreach(program quired quire)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT binaries)
  endif()
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs/
        DESTINATION ${CMAKE_INSTALL_DATADIR}/quire/configs COMPONENT configs
        FILES_MATCHING PATTERN "*.yaml" PATTERN "*.jinja")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/quire ${PROJECT_SOURCE_DIR}/proto/smg ${PROJECT_SOURCE_DIR}/proto/vllm
        DESTINATION ${CMAKE_INSTALL_DATADIR}/quire/proto COMPONENT assets
        FILES_MATCHING PATTERN "*.proto")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT assets)
if(QUIRE_HAS_XGRAMMAR)  # linked statically into quired
  install(FILES ${xgrammar}/LICENSE ${xgrammar}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR}/xgrammar COMPONENT assets)
  install(FILES ${xgrammar}/3rdparty/dlpack/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR}/xgrammar RENAME dlpack_license
          COMPONENT assets)
  file(READ ${xgrammar}/3rdparty/picojson/picojson.h picojson)
  string(FIND "${picojson}" "*/" licence_end)  # its first comment
  string(SUBSTRING "${picojson}" 0 ${licence_end} picojson_license)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/picojson_license CONTENT "${picojson_license}*/\n" @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/picojson_license DESTINATION ${CMAKE_INSTALL_DOCDIR}/xgrammar
          COMPONENT assets)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/assets/story/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
        RENAME embedded_model.md COMPONENT assets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT docs
        PATTERN "README.md" EXCLUDE)  # the index; the README of the project takes its name
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
              ${PROJECT_SOURCE_DIR}/SECURITY.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT docs)

# Installs manual pages and completion scripts (tools/CMakeLists.txt) under the names that man and the shells expect.
if(TARGET manual)
  set(manual_dir ${PROJECT_BINARY_DIR}/tools/manual)
  install(FILES ${manual_dir}/quire.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT docs)
  install(FILES ${manual_dir}/quired.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT docs)
  foreach(program quire quired)
    install(FILES ${manual_dir}/${program}.bash RENAME ${program} COMPONENT docs
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${manual_dir}/${program}.zsh RENAME _${program} COMPONENT docs
            DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
    install(FILES ${manual_dir}/${program}.fish COMPONENT docs
            DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endforeach()
endif()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_VENDOR "the quire authors")
set(CPACK_PACKAGE_CONTACT "the quire authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)  # for `quire pull`
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
include(CPack)
